package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// forTheEnd is what a package's tests leave of their time for the end of what they have made.
const forTheEnd = 2 * time.Minute

// TestsLimit is a hang guard for all tests of a package: what go test gives them (-timeout), but for their end. How long they
// take is the host's and its other work's matter.
func TestsLimit() time.Duration {
	flag.Parse()
	limit := 10 * time.Minute // go test's own default
	if given, ok := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); ok && given > 0 {
		limit = given
	}
	return max(limit-forTheEnd, limit/2)
}

// RunTests is the TestMain of a package whose tests share one installation: prepare gets it, BIN says where the binaries
// are. It answers the process's exit code. A copy of the test binary that runs inside a machine as a probe ends in it.
func RunTests(m interface{ Run() int }, prepare func(context.Context, *Installation) error) int {
	if probe, err := Probe(os.Args); probe {
		return exitCode(0, err)
	}
	return exitCode(runTests(m, prepare))
}

func runTests(m interface{ Run() int }, prepare func(context.Context, *Installation) error) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), TestsLimit())
	defer cancel()
	i, err := Open(ctx, Given("BIN", "../../bin"))
	if err != nil {
		return 1, err
	}
	defer func() {
		if code != 0 || err != nil {
			fmt.Fprintf(os.Stderr, "--- the control plane's log, its end ---\n%s\n", i.Log())
		}
		err = errors.Join(err, i.Remove(context.WithoutCancel(ctx)))
	}()
	if err := prepare(ctx, i); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

func exitCode(code int, err error) int {
	if err == nil {
		return code
	}
	fmt.Fprintln(os.Stderr, err)
	return max(code, 1)
}
