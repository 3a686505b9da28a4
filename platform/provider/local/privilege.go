package local

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"powernode/schema"
)

// needed are the capabilities without which no machine can be made.
var needed = []struct {
	bit  uint
	name string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
	{unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT"},
	{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"},
}

// missingPrivileges names what this process lacks.
func missingPrivileges() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	var missing []string
	err := unix.Capget(&header, &data[0])
	for _, c := range needed {
		if err != nil || data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing
}

func requirePrivileges() error {
	missing := missingPrivileges()
	if len(missing) == 0 {
		return nil
	}
	return &schema.Error{
		Code:    schema.PreconditionFailed,
		Message: fmt.Sprintf("making machines needs root: this process lacks %s; everything else works without (run powernode serve as root, or use another provider)", strings.Join(missing, ", ")),
		Details: map[string]any{"missing": missing},
	}
}
