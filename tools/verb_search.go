package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"

	"powernode/platform/governance"
	"powernode/schema"
	"powernode/store"
)

// foundVerbs is how many verbs a search answers.
const foundVerbs = 12

type searchVerbsArgs struct {
	Query string `json:"query"`
}

type foundVerb struct {
	Name           string              `json:"name"`
	Toolset        string              `json:"toolset"`
	Summary        string              `json:"summary"`
	Parameters     json.RawMessage     `json:"parameters"` // the input schema
	Annotations    schema.Annotations  `json:"annotations"`
	ActionCategory *string             `json:"action_category"`
	Verdict        *governance.Verdict `json:"verdict"`
}

type searchVerbsResult struct {
	Verbs []foundVerb `json:"verbs"`
}

func platformSearchVerbs() *Definition {
	return define("platform_search_verbs", handler[searchVerbsArgs, searchVerbsResult]{
		read: func(ctx context.Context, p *Platform, v *store.View, c Caller, a searchVerbsArgs) (r searchVerbsResult, err error) {
			r.Verbs = []foundVerb{}
			for _, d := range p.Search(c, a.Query, foundVerbs) {
				found := foundVerb{Name: d.name, Toolset: d.Verb.Toolset, Summary: d.Verb.Description, Parameters: d.Verb.Input,
					Annotations: d.Verb.Annotations, ActionCategory: orNull(d.Verb.Category)}
				if d.Verb.Gated() {
					verdict, err := p.Governance.Decide(ctx, v, c, d.Verb.Category, nil)
					if err != nil {
						return r, err
					}
					found.Verdict = &verdict
				}
				r.Verbs = append(r.Verbs, found)
			}
			return r, nil
		},
	})
}

// Search finds the verbs that the caller may call and that fit a query best, at most so many. Equal queries find the same.
func (p *Platform) Search(c Caller, query string, most int) []*Definition {
	p.search.once.Do(func() { p.search.build(p.order) })
	type hit struct {
		d     *Definition
		score float64
	}
	var hits []hit
	asked := p.search.asked(query)
	for i, d := range p.order {
		score := p.search.score(i, asked)
		if strings.Contains(" "+strings.ToLower(query)+" ", " "+d.name+" ") || bareName(strings.TrimSpace(query)) == d.name {
			score += 1000 // it was named
		}
		if score > 0 && (&call{p: p, d: d, caller: c}).authorise() == nil {
			hits = append(hits, hit{d, score})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.score, a.score) }) // p.order is by name
	out := make([]*Definition, min(len(hits), most))
	for i := range out {
		out[i] = hits[i].d
	}
	return out
}

// What a word is worth by where it stands.
const (
	inName        = 4.0
	inTitle       = 3.0
	inDescription = 1.5
	inToolset     = 1.0
	inParameter   = 1.0
	inRemark      = 0.4 // a parameter's description
	asSynonym     = 0.55
)

// verbIndex is what the words of each verb are worth.
type verbIndex struct {
	once     sync.Once
	worth    []map[string]float64 // by verb, in the platform's order
	rareness map[string]float64
	groups   [][]string // of synonyms
}

func (x *verbIndex) build(order []*Definition) {
	seen := map[string]int{}
	for line := range strings.Lines(synonyms) {
		x.groups = append(x.groups, words(line))
	}
	for _, d := range order {
		worth := map[string]float64{}
		add := func(text string, value float64) {
			for _, word := range words(text) {
				worth[word] = max(worth[word], value) + value/8
			}
		}
		add(d.Verb.Description, inDescription)
		add(d.Verb.Toolset, inToolset)
		add(d.Verb.Title, inTitle)
		add(d.name, inName)
		var input struct {
			Properties map[string]struct{ Description string }
		}
		if json.Unmarshal(d.Verb.Input, &input) == nil { // the registry has read it
			for _, name := range d.Verb.Parameters() {
				add(name, inParameter)
				add(input.Properties[name].Description, inRemark)
			}
		}
		for word := range worth {
			seen[word]++
		}
		x.worth = append(x.worth, worth)
	}
	x.rareness = make(map[string]float64, len(seen))
	for word, n := range seen {
		x.rareness[word] = math.Log(1 + float64(len(order))/float64(n))
	}
}

// asked are a query's words, each with what it may also be called.
func (x *verbIndex) asked(query string) [][]string {
	var out [][]string
	for _, word := range words(query) {
		out = append(out, append([]string{word}, x.alsoCalled(word)...))
	}
	return out
}

func (x *verbIndex) score(verb int, asked [][]string) float64 {
	sum, matched := 0.0, 0
	for _, names := range asked {
		best := 0.0
		for i, word := range names {
			value := x.worth[verb][word] * x.rareness[word]
			if i > 0 {
				value *= asSynonym
			}
			best = max(best, value)
		}
		if best > 0 {
			matched++
		}
		sum += best
	}
	if matched == 0 {
		return 0
	}
	return sum * (0.5 + float64(matched)/float64(2*len(asked)))
}

// synonyms are words that people use for the same thing; each line is a group of stems.
const synonyms = `
machine instance host vm computer box
worker node agent
node machine
server node
move migrate transfer relocate
create add new make declare
delete remove destroy drop erase
terminate delete destroy kill
list show all
get show view see read describe inspect look
update change edit modify set adjust configure
stop halt shutdown poweroff pause
emergency panic freeze kill
start boot poweron launch run
reboot restart
provision launch spawn machine
vpn sdwan overlay wireguard
network subnet lan
firewall acl rule port block allow filter
kubernetes k8s k3s
cluster kubernetes
user person people member
policy permission verdict governance
confirm approve approval ask
operation approval pending parked
audit log history record who
event log history
signal alert alarm incident notification
failure error fail broken
health status state verify check
vip address ip endpoint
kubeconfig credential kubectl access
attach join connect
detach leave disconnect
assign install enable deploy
unassign uninstall disable
upgrade rollout version update
rollback revert downgrade undo
template blueprint profile
module package component software
device laptop phone client
grant access permit
failover switch takeover
isolation isolate leak separate
drift diverge difference stale
silent dead offline unreachable
drain evacuate empty
cordon unschedulable
task job
provider cloud
region location datacenter
type size flavor plan
price cost
preview dryrun simulate plan would before
route routing bgp
peer member machine
replace swap rebuild
refresh sync reconcile
decommission retire remove
backup snapshot
token secret credential
explain why trace
search find discover
resume continue unpause
`

// alsoCalled are the stems that a stem shares a group with.
func (x *verbIndex) alsoCalled(stem string) []string {
	var out []string
	for _, group := range x.groups {
		if !slices.Contains(group, stem) {
			continue
		}
		for _, other := range group {
			if other != stem && !slices.Contains(out, other) {
				out = append(out, other)
			}
		}
	}
	return out
}

// plainWords say nothing of what a verb does.
const plainWords = ` a an the to of in on at for from by with into onto my our your its it is are be do does how i me we you want need
 can could should please another other some any this that these those what which when where and or not no as if then so
 one use used using system platform verb `

// words are the stems of a text's words, in order, without those that say nothing.
func words(text string) []string {
	var out []string
	for _, word := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}) {
		if strings.Contains(plainWords, " "+word+" ") {
			continue
		}
		out = append(out, stem(word))
	}
	return out
}

// stem takes the endings off an English word, so that its forms meet.
func stem(word string) string {
	if len(word) < 4 {
		return word
	}
	for _, ending := range []struct{ off, on string }{{"ities", "ity"}, {"ies", "y"}, {"sses", "ss"}, {"ations", "at"}, {"ation", "at"},
		{"ating", "at"}, {"ated", "at"}, {"ates", "at"}, {"ate", "at"}, {"ings", ""}, {"ing", ""}, {"ied", "y"}, {"ed", ""}, {"es", ""},
		{"s", ""}, {"e", ""}} {
		rest, ok := strings.CutSuffix(word, ending.off)
		if !ok || len(rest) < 3 || (ending.off == "s" && (strings.HasSuffix(rest, "s") || strings.HasSuffix(rest, "u"))) {
			continue
		}
		word = rest + ending.on
		break
	}
	if n := len(word); n > 4 && word[n-1] == word[n-2] && !strings.ContainsRune("lsz", rune(word[n-1])) {
		word = word[:n-1] // planned, stopped
	}
	return word
}
