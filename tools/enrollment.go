package tools

import (
	"context"

	"powernode/store"
)

// tellEnrollment answers how somebody brings the machine in, for providers that make none.
func (r *provisionResult) tellEnrollment(ctx context.Context, p *Platform, tx *store.Tx, i store.Instance) error {
	e, warnings, err := p.Fleet.EnrollmentOf(ctx, &tx.View, i)
	r.warned(warnings)
	if err != nil || e == nil {
		return err
	}
	r.Enrollment = &manualEnrollment{Command: e.Command, ExpiresAt: e.ExpiresAt}
	r.Hint.Text = "Run enrollment.command as root on the machine; then poll this, or wait for the signal system.instance_running."
	return nil
}
