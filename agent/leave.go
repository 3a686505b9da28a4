package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"powernode/nodeapi"
	"powernode/sdwan"
)

// ErrLeft is what Run returns once the platform has asked this machine to leave, all that the agent made is gone, and the
// platform knows it. What is left is the agent itself: see package install.
var ErrLeft = errors.New("this machine has left the platform")

// leave ends the agent when a report has told the platform that the machine is clean. A platform that doesn't know this
// machine any more has been told before, or waits for nothing.
func (a *Agent) leave(told sdwan.Report, err error) {
	var refused *nodeapi.Error
	known := err == nil || (errors.As(err, &refused) && refused.HTTPStatus == http.StatusUnauthorized)
	if doc := a.current.Load(); known && doc != nil && doc.Instance.Leave && a.own(doc) && clean(told, doc.Revision) {
		a.leaving.Do(func() { close(a.gone) })
	}
}

// own says whether a document is this machine's: one that was enrolled anew has its former instance's until its first comes.
func (a *Agent) own(doc *sdwan.Document) bool {
	id := a.conn.id.Load()
	return id != nil && doc.Instance.ID == id.InstanceID
}

// clean says whether every subsystem has done what the document asked for.
func clean(r sdwan.Report, revision int64) bool {
	for _, sub := range r.Subsystems {
		if sub.State != "ok" || sub.AppliedRevision < revision {
			return false
		}
	}
	return true
}

// EnrolledAs is the instance that a machine has an identity of; "" is none. It needs no lock: the agent may run.
func EnrolledAs(dir string) (string, error) {
	id, err := (&state{dir: dir}).readIdentity()
	if err != nil || id == nil {
		return "", err
	}
	return id.InstanceID, nil
}

// ToLeave asks the platform whether the instance that a machine has an identity of has ended, and the machine is to leave. A
// platform that knows no such instance any more has nothing to ask for.
func ToLeave(ctx context.Context, dir string) (bool, error) {
	id, err := (&state{dir: dir}).readIdentity()
	if err != nil || id == nil {
		return false, err
	}
	client, err := nodeapi.NewClient(nodeapi.ClientOptions{URLs: id.PlatformURLs, CAPEM: id.CAPEM, Certificate: id.certificate})
	if err != nil {
		return false, err
	}
	defer client.CloseIdle()
	doc, err := client.Desired(ctx, 0, "", 0)
	if refused, is := errors.AsType[*nodeapi.Error](err); is && refused.HTTPStatus == http.StatusUnauthorized {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for the document of instance %s: %w", id.InstanceID, err)
	}
	return doc != nil && doc.Instance.Leave && doc.Instance.ID == id.InstanceID, nil
}

// LeavingFiles are those of the state directory by which an agent that was cut off while it left goes on leaving.
func LeavingFiles() []string { return []string{identityFile, documentFile} }
