package governance

import (
	"sync"

	"github.com/rs/zerolog"

	"powernode/schema"
	"powernode/store"
)

// Service decides calls and keeps operations.
type Service struct {
	Sealer   *store.Sealer
	StateDir string // where root may have named a key; empty: nowhere
	Log      zerolog.Logger
	Gated    func(category string) []*schema.Verb // the verbs that a category gates; nil: none

	anchors  anchors
	suspects suspects
	memo     memo
	used     used
	ends     sync.Map // ends of emergency stops that were verified
}
