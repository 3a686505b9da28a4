package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"powernode/nodeapi"
	"powernode/sdwan"
)

const (
	pollWait  = 50 * time.Second
	fullEvery = 5 * time.Minute
)

// poll waits for documents as long as the agent lives. The first answer, one after each lost connection and one every
// few minutes is a full sync.
func (a *Agent) poll(ctx context.Context) {
	b := backoff{low: 250 * time.Millisecond, high: 15 * time.Second}
	var lastFull time.Time
	said := ""
	for ctx.Err() == nil {
		client, err := a.conn.Client()
		full := time.Since(lastFull) >= fullEvery
		var doc *sdwan.Document
		asked := time.Now()
		if err == nil {
			doc, err = a.ask(ctx, client, full)
		}
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			if m := explain(err); m != said {
				a.o.Log.Warn().Str("error", m).Msg("no document from the platform; the last one stays applied")
				said = m
			}
			lastFull = time.Time{}
			pause(ctx, wait(err, &b))
			continue
		}
		b.reset()
		said = ""
		if full {
			lastFull = time.Now()
		}
		if doc != nil {
			a.take(doc)
		}
		a.keep()
		if doc == nil && time.Since(asked) < time.Second {
			pause(ctx, time.Second) // an answer without a document that didn't wait: don't ask in a circle
		}
	}
}

func (a *Agent) ask(ctx context.Context, p Platform, full bool) (*sdwan.Document, error) {
	have := a.current.Load()
	if full || have == nil || !a.own(have) {
		return p.Desired(ctx, 0, "", pollWait)
	}
	return p.Desired(ctx, have.Revision, have.Incarnation, pollWait)
}

// take applies a document that came. One that is older than ours, or another instance's, is refused.
func (a *Agent) take(doc *sdwan.Document) {
	if err := a.acceptable(doc); err != nil {
		a.o.Log.Error().Err(err).Msg("document refused")
		return
	}
	a.dispatch(doc)
	a.tasks.offer(doc, a.workers)
}

// keep writes the document that is applied, unless it is on disk; what fails is tried again after the platform's next answer.
func (a *Agent) keep() {
	doc := a.current.Load()
	if doc == nil || a.kept == versionOf(doc) {
		return
	}
	if err := a.state.writeDocument(doc); err != nil {
		a.o.Log.Error().Err(err).Msg("document is applied and not kept")
		return
	}
	a.kept = versionOf(doc)
}

// version names the content of a document.
type version struct {
	instance, incarnation string
	revision              int64
}

func versionOf(doc *sdwan.Document) version {
	return version{instance: doc.Instance.ID, incarnation: doc.Incarnation, revision: doc.Revision}
}

func (a *Agent) acceptable(doc *sdwan.Document) error {
	if id := a.conn.id.Load(); id != nil && doc.Instance.ID != id.InstanceID {
		return fmt.Errorf("it is for instance %s", doc.Instance.ID)
	}
	have := a.current.Load()
	if have != nil && have.Instance.ID == doc.Instance.ID && have.Incarnation == doc.Incarnation && doc.Revision < have.Revision {
		return fmt.Errorf("revision %d is older than %d", doc.Revision, have.Revision)
	}
	return nil
}

// wait answers how long to leave the platform alone after an error: what it asked for, else the backoff.
func wait(err error, b *backoff) time.Duration {
	var e *nodeapi.Error
	if errors.As(err, &e) {
		if e.HTTPStatus == http.StatusServiceUnavailable && e.RetryAfter > 0 {
			return time.Duration(e.RetryAfter) * time.Second
		}
		if e.HTTPStatus == http.StatusNotFound || e.HTTPStatus == http.StatusUnauthorized {
			return max(b.next(), 5*time.Second)
		}
	}
	return b.next()
}

func explain(err error) string {
	var e *nodeapi.Error
	if errors.As(err, &e) {
		return cleanText(fmt.Sprintf("HTTP %d: %s", e.HTTPStatus, e.Message), maxMessage)
	}
	return cleanText(err.Error(), maxMessage)
}
