package governance

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"powernode/store"
)

// Effect is one change that a call would make, as people and assistants see it: ids and times that the run makes
// stand as new:N and now, because another run makes others.
type Effect struct {
	Action       string       `json:"action"`
	ResourceType string       `json:"resource_type"`
	ID           *string      `json:"id"` // null: the run makes it
	Name         *string      `json:"name"`
	Before       store.Object `json:"before"`
	After        store.Object `json:"after"`
}

// Effects are the changes of a plan as they are shown, in the order in which the run makes them: each with what people call
// the row, and with what is secret by its name masked, as it is in the arguments.
func Effects(p *store.Plan) []Effect {
	out := effects(p)
	for i := range out {
		if out[i].Name == nil {
			out[i].Name = orNil(p.Names[p.Effects[i].ResourceID])
		}
		out[i].Before, out[i].After = Mask(out[i].Before).(store.Object), Mask(out[i].After).(store.Object)
	}
	return out
}

// effects are the changes of a plan as its digest covers them.
func effects(p *store.Plan) []Effect {
	n := newNormaliser(p)
	out := make([]Effect, 0, len(p.Effects))
	for _, e := range p.Effects {
		effect := Effect{Action: e.Action, ResourceType: e.ResourceType, Before: n.object(e.Old), After: n.object(e.New),
			Name: nameIn(e.New, e.Old)}
		if id := n.text(e.ResourceID); id == e.ResourceID {
			effect.ID = &id
		}
		out = append(out, effect)
	}
	return out
}

// Digest is the plan's name: equal when the call, its changes and the rows that it rests on are.
func Digest(verb string, arguments json.RawMessage, p *store.Plan) string {
	type ground struct {
		Table    string `json:"table"`
		ID       string `json:"id"`
		Revision int64  `json:"revision"`
	}
	grounds := make([]ground, 0, len(p.Seen))
	for row, revision := range p.Seen {
		grounds = append(grounds, ground{row.Table, row.ID, revision})
	}
	slices.SortFunc(grounds, func(a, b ground) int {
		if c := strings.Compare(a.Table, b.Table); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	sum := sha256.Sum256(canonical(struct {
		Verb      string          `json:"verb"`
		Arguments json.RawMessage `json:"arguments"`
		Effects   []Effect        `json:"effects"`
		Grounds   []ground        `json:"grounds"`
	}{verb, inOrder(arguments), effects(p), grounds}))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ArgumentsHash names normalised arguments: equal ones have the same.
func ArgumentsHash(arguments json.RawMessage) string {
	sum := sha256.Sum256(inOrder(arguments))
	return hex.EncodeToString(sum[:])
}

// inOrder spells arguments with all keys sorted, those of free-form objects too: equal arguments are equal bytes.
func inOrder(arguments json.RawMessage) json.RawMessage {
	var v any
	if !decode(arguments, &v) {
		return arguments
	}
	return canonical(v)
}

// Irreversible tells in words which of the changes can't be taken back.
func Irreversible(effects []Effect) []string {
	out := []string{}
	for _, e := range effects {
		lost := loss(e)
		if lost == "" {
			continue
		}
		what := e.ResourceType
		if e.Name != nil {
			what += " " + Quote(*e.Name)
		} else if e.ID != nil {
			what += " " + *e.ID
		}
		out = append(out, what+" "+lost)
	}
	return out
}

// final are the actions of audit rows that no call takes back.
var final = map[string]bool{"deleted": true, "terminated": true, "decommissioned": true, "revoked": true, "purged": true}

// begun are the intents of instances that no call takes back, as what they come to.
var begun = map[string]string{
	store.IntentTerminate:   "terminated",
	store.IntentDestroy:     "deleted",
	store.IntentStopForce:   "cut off: what it has not written to disk is lost",
	store.IntentRebootForce: "cut off: what it has not written to disk is lost",
}

// fates are what becomes of the machine of an instance that ends.
var fates = map[string]string{
	store.MachineDestroyed: ": its machine is destroyed, with all that is on it",
	store.MachineStays:     ": its machine stays, and what the platform put on it is removed",
}

// loss says what of a change can't be taken back; "" is nothing. A change that only begins here is judged by what it comes to.
func loss(e Effect) string {
	if final[e.Action] {
		return e.Action
	}
	text := func(key string) string {
		value, _ := e.After[key].(string)
		return value
	}
	switch {
	case e.ResourceType == "System::NodeModuleVersion" && text("promotion_state") == "retired":
		return "retired: no machine gets it again"
	case e.ResourceType != "System::NodeInstance":
		return ""
	case e.After["replacement"] != nil:
		return "replaced" + fates[text("machine")]
	case begun[text("intent")] != "":
		return begun[text("intent")] + fates[text("machine")]
	}
	return ""
}

// Touched are the ids of what a plan concerns.
type Touched struct {
	Instances []string `json:"instances"`
	Peers     []string `json:"peers"`
	Rules     []string `json:"rules"`
	Clusters  []string `json:"clusters"`
	Networks  []string `json:"networks"`
}

// Touches collects what a plan concerns: what its changes name, and what would be compiled anew.
func Touches(p *store.Plan) Touched {
	found := map[string]map[string]bool{}
	add := func(kind, id string) {
		if found[kind] == nil {
			found[kind] = map[string]bool{}
		}
		if !slices.Contains(p.Made, id) {
			found[kind][id] = true
		}
	}
	for _, id := range p.Instances {
		add("System::NodeInstance", string(id))
	}
	for _, id := range p.Networks {
		add("Sdwan::Network", string(id))
	}
	for _, e := range p.Effects {
		add(e.ResourceType, e.ResourceID)
	}
	list := func(kind string) []string {
		ids := slices.Sorted(maps.Keys(found[kind]))
		if ids == nil {
			ids = []string{}
		}
		return ids
	}
	return Touched{Instances: list("System::NodeInstance"), Peers: list("Sdwan::Peer"), Rules: list("Sdwan::FirewallRule"),
		Clusters: list("Devops::KubernetesCluster"), Networks: list("Sdwan::Network")}
}

func nameIn(objects ...store.Object) *string {
	for _, o := range objects {
		if name, ok := o["name"].(string); ok {
			return &name
		}
	}
	return nil
}

// normaliser replaces what only this run made.
type normaliser struct {
	now  time.Time
	made map[string]bool
	seen map[string]string // made id → new:N, in the order of first appearance
}

var (
	idInText     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	timeInValues = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`)
)

func newNormaliser(p *store.Plan) *normaliser {
	n := &normaliser{now: p.Now, made: make(map[string]bool, len(p.Made)), seen: map[string]string{}}
	for _, id := range p.Made {
		n.made[id] = true
	}
	return n
}

func (n *normaliser) object(o store.Object) store.Object {
	var plain store.Object // values of ours (store.Time, typed ids) become what they are as JSON
	if !decode(o, &plain) || plain == nil {
		return store.Object{}
	}
	return n.value(plain).(store.Object)
}

func (n *normaliser) value(v any) any {
	switch v := v.(type) {
	case string:
		return n.text(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = n.value(v[i])
		}
		return out
	case map[string]any:
		out := make(store.Object, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) { // the order of first appearance must not be the map's
			out[n.text(key)] = n.value(v[key])
		}
		return out
	}
	return v
}

func (n *normaliser) text(s string) string {
	if timeInValues.MatchString(s) {
		if at, err := time.Parse(time.RFC3339Nano, s); err == nil && !at.Before(n.now) {
			return "now"
		}
	}
	return idInText.ReplaceAllStringFunc(s, func(id string) string {
		if !n.made[id] {
			return id
		}
		if n.seen[id] == "" {
			n.seen[id] = fmt.Sprintf("new:%d", len(n.seen)+1)
		}
		return n.seen[id]
	})
}
