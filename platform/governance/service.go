package governance

import (
	"github.com/rs/zerolog"

	"powernode/store"
)

// Service decides calls and keeps operations.
type Service struct {
	Sealer   *store.Sealer
	StateDir string // where root may have named a key; empty: nowhere
	Log      zerolog.Logger

	anchors  anchors
	suspects suspects
	memo     memo
	used     used
}
