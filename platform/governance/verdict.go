package governance

// Verdict is what a policy says of an action category.
type Verdict string

// Verdicts, from loose to strict.
const (
	AutoApprove      Verdict = "auto_approve"
	NotifyAndProceed Verdict = "notify_and_proceed"
	RequireApproval  Verdict = "require_approval"
	Block            Verdict = "block"
)

var strictness = map[Verdict]int{AutoApprove: 0, NotifyAndProceed: 1, RequireApproval: 2, Block: 3}

// Default is the compiled-in verdict of a category; an unknown one is require_approval.
func Default(category string) Verdict {
	if v, known := Defaults[category]; known {
		return v
	}
	return RequireApproval
}

// Stricter is the stricter of two verdicts; a value that is none of the four counts as require_approval.
func Stricter(a, b Verdict) Verdict {
	if rankOf(b) > rankOf(a) {
		return b
	}
	return a
}

func rankOf(v Verdict) int {
	if r, known := strictness[v]; known {
		return r
	}
	return strictness[RequireApproval]
}
