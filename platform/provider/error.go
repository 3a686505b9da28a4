package provider

import (
	"context"
	"errors"
	"strings"
	"time"

	"powernode/schema"
)

// Class is what kind of refusal a vendor gave, normalised.
type Class string

// Classes of errors. What is none of these is like ClassOther.
const (
	ClassAuthentication Class = "authentication" // the credentials don't work
	ClassRateLimit      Class = "rate_limit"     // too many requests; RetryAt says when again
	ClassQuota          Class = "quota"          // the vendor's limit is reached
	ClassUnsupported    Class = "unsupported"    // the provider can't do that
	ClassOther          Class = "other"
)

// Error is a vendor's refusal. Message is the vendor's text without secrets (Scrub).
type Error struct {
	Class   Class
	Message string
	RetryAt time.Time // of ClassRateLimit; zero is not known
}

func (e *Error) Error() string { return e.Message }

// Unsupported is the answer of a method whose capability is not declared.
func Unsupported(what string) error {
	return &Error{Class: ClassUnsupported, Message: what}
}

// hidden stands for a secret in a text.
const hidden = "[secret]"

// Scrub takes secrets out of a vendor's text.
func Scrub(text string, secrets []string) string {
	for _, secret := range secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, hidden)
		}
	}
	return text
}

// Refusal is an adapter's error as a caller is told it. by names the provider, or the connection that was used.
func Refusal(err error, by string) *schema.Error {
	var coded *schema.Error
	if errors.As(err, &coded) {
		return coded
	}
	if errors.Is(err, ErrNotFound) {
		return schema.Errorf(schema.NotFound, "%s: %s", by, ErrNotFound)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return schema.Errorf(schema.Unavailable, "%s: it did not answer in time", by).AsRetryable()
	}
	var told *Error
	if !errors.As(err, &told) {
		told = &Error{Class: ClassOther, Message: err.Error()}
	}
	switch text := schema.Message(told.Message); told.Class {
	case ClassAuthentication:
		refusal := schema.Errorf(schema.Unavailable, "%s: its credentials were refused: %s", by, text)
		refusal.Retryable = false
		return refusal
	case ClassRateLimit:
		refusal := schema.Errorf(schema.Unavailable, "%s: too many requests: %s", by, text).AsRetryable()
		if !told.RetryAt.IsZero() {
			refusal = refusal.WithDetail("retry_at", told.RetryAt.UTC().Format(time.RFC3339))
		}
		return refusal
	case ClassQuota, ClassUnsupported:
		return schema.Errorf(schema.PreconditionFailed, "%s: %s", by, text)
	default:
		return schema.Errorf(schema.Unavailable, "%s: %s", by, text).AsRetryable()
	}
}
