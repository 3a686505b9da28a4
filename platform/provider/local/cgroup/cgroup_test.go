package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHierarchiesAreReadFromTheMounts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, mountinfo string
		want            []Hierarchy
	}{
		{"version 2 alone", `
30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`, []Hierarchy{{Path: "/sys/fs/cgroup", Version: 2}}},
		{"version 1 with version 2 beside it", `
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup ro,nosuid shared:1 - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:2 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd
34 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`, []Hierarchy{
			{Path: "/sys/fs/cgroup/cpu,cpuacct", Version: 1, Options: "cpu,cpuacct"},
			{Path: "/sys/fs/cgroup/systemd", Version: 1, Options: "none,name=systemd"},
			{Path: "/sys/fs/cgroup/unified", Version: 2},
		}},
		{"read-only, elsewhere, or seen before", `
30 23 0:26 / /sys/fs/cgroup ro,relatime - cgroup2 cgroup2 rw
31 23 0:27 / /somewhere/cgroup rw,relatime - cgroup2 cgroup2 rw
32 23 0:29 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
33 23 0:29 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
`, []Hierarchy{{Path: "/sys/fs/cgroup/pids", Version: 1, Options: "pids"}}},
		{"none", "27 1 254:0 / / rw - ext4 /dev/vda rw\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, parse(tt.mountinfo)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
