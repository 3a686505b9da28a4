package fleet

import (
	"powernode/schema"
	"powernode/store"
)

// Events in the life of an instance.
const (
	eventAccepted  = "provisioning accepted"
	eventReported  = "first report"
	eventRebooted  = "report with another boot id"
	eventFailed    = "failure"
	eventTerminate = "terminate"
	eventStart     = "start"
	eventStop      = "stop"
	eventStopped   = "agent or provider reports stopped"
	eventReboot    = "reboot"
)

// transitions is the contract's table of instances (11.1). What is not in it does not happen.
var transitions = map[string]struct {
	from []string
	to   string
}{
	eventAccepted: {[]string{store.InstancePending}, store.InstanceProvisioning},
	eventReported: {[]string{store.InstancePending, store.InstanceProvisioning, store.InstanceStarting, store.InstanceError}, store.InstanceRunning},
	eventRebooted: {[]string{store.InstanceRebooting, store.InstanceStopping, store.InstanceStopped}, store.InstanceRunning},
	eventStart:    {[]string{store.InstanceStopped, store.InstanceError}, store.InstanceStarting},
	eventStop:     {[]string{store.InstanceRunning, store.InstanceStarting}, store.InstanceStopping},
	eventStopped:  {[]string{store.InstanceStarting, store.InstanceRunning, store.InstanceStopping}, store.InstanceStopped},
	eventReboot:   {[]string{store.InstanceRunning}, store.InstanceRebooting},
	eventFailed: {[]string{store.InstancePending, store.InstanceProvisioning, store.InstanceStarting, store.InstanceRunning,
		store.InstanceStopping, store.InstanceRebooting}, store.InstanceError},
	eventTerminate: {[]string{store.InstancePending, store.InstanceProvisioning, store.InstanceStarting, store.InstanceRunning,
		store.InstanceStopping, store.InstanceStopped, store.InstanceRebooting, store.InstanceError}, store.InstanceTerminated},
}

// after is the status that an event leads to, or false where the table doesn't allow it.
func after(event, status string) (string, bool) {
	t := transitions[event]
	for _, from := range t.from {
		if from == status {
			return t.to, true
		}
	}
	return status, false
}

// refuseTransition is the refusal of a change that the table doesn't allow.
func refuseTransition(verb, event, status string) error {
	return schema.Errorf(schema.PreconditionFailed, "cannot %s from %s", verb, status).WithDetail("allowed", transitions[event].from)
}
