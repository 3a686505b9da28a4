package sdwan

import "fmt"

// MTUs. IPv6 needs MinMTU on every link, and below it the kernel takes IPv6 from an interface without an error.
const (
	DefaultMTU  = 1420 // an underlay of 1500
	MinMTU      = 1280
	MinMTUVXLAN = MinMTU + vxlanOverIPv6

	wireGuardOverIPv6 = 80
	wireGuardOverIPv4 = 60
	vxlanOverIPv6     = 70
)

// MTUError refuses an MTU, with the arithmetic.
type MTUError struct {
	MTU    int
	Needed int
	VXLAN  bool
}

func (e *MTUError) Error() string {
	if e.VXLAN {
		return fmt.Sprintf("mtu %d is too small for vxlan: %d - %d = %d for pods, and IPv6 needs %d; at least %d",
			e.MTU, e.MTU, vxlanOverIPv6, e.MTU-vxlanOverIPv6, MinMTU, e.Needed)
	}
	return fmt.Sprintf("mtu %d is too small: IPv6 needs %d", e.MTU, e.Needed)
}

// OverlayMTU is what WireGuard leaves of an underlay's MTU. Only where every endpoint of the network is IPv4 does the
// smaller header count.
func OverlayMTU(underlay int, allIPv4 bool) int {
	if allIPv4 {
		return underlay - wireGuardOverIPv4
	}
	return underlay - wireGuardOverIPv6
}

// PodMTU is what the flannel backend leaves of a network's MTU; the outer header is IPv6, since the overlay is.
func PodMTU(mtu int, backend string) int {
	if backend == BackendHostGW {
		return mtu
	}
	return mtu - vxlanOverIPv6
}

// CheckMTU refuses what is below IPv6's minimum, with vxlan in the pods.
func CheckMTU(mtu int, vxlan bool) error {
	needed := MinMTU
	if vxlan {
		needed = MinMTUVXLAN
	}
	if mtu < needed {
		return &MTUError{MTU: mtu, Needed: needed, VXLAN: vxlan}
	}
	return nil
}
