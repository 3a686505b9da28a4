package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"powernode/spec/k3srig/internal/supervisor"
)

// Annotations as K3s and flannel write them.
const (
	annotationHostname   = "k3s.io/hostname"
	annotationInternalIP = "k3s.io/internal-ip"
	annotationNodeIP     = "alpha.kubernetes.io/provided-node-ip"
	annotationBackend    = "flannel.alpha.coreos.com/backend-type"
	annotationPublicIP   = "flannel.alpha.coreos.com/public-ip"
	annotationPublicIPv6 = "flannel.alpha.coreos.com/public-ipv6"
)

type registration struct {
	Options
	client  kubernetes.Interface
	cluster supervisor.Config
	uid     types.UID
}

// register creates the Node, or brings labels and annotations of an existing one up to date.
func (r *registration) register(ctx context.Context) error {
	nodes := r.client.CoreV1().Nodes()
	want, err := r.node()
	if err != nil {
		return err
	}
	got, err := nodes.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch, jerr := json.Marshal(map[string]any{"metadata": map[string]any{"labels": want.Labels, "annotations": want.Annotations}})
		if jerr != nil {
			return fmt.Errorf("encode node labels: %w", jerr)
		}
		got, err = nodes.Patch(ctx, r.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("register node %s: %w", r.Name, err)
	}
	r.uid = got.UID
	if err := r.updateStatus(ctx); err != nil {
		return err
	}
	return r.renewLease(ctx)
}

func (r *registration) node() (*corev1.Node, error) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: r.Name,
		Labels: map[string]string{
			corev1.LabelHostname:               r.Name,
			corev1.LabelOSStable:               runtime.GOOS,
			corev1.LabelArchStable:             runtime.GOARCH,
			"beta.kubernetes.io/os":            runtime.GOOS,
			"beta.kubernetes.io/arch":          runtime.GOARCH,
			corev1.LabelInstanceTypeStable:     "k3s",
			"beta.kubernetes.io/instance-type": "k3s",
		},
		Annotations: map[string]string{
			annotationHostname:   r.Name,
			annotationInternalIP: joinAddrs(r.IPs),
			annotationNodeIP:     joinAddrs(r.IPs),
		},
	}}
	if r.cluster.FlannelBackend != "none" {
		n.Annotations[annotationBackend] = r.cluster.FlannelBackend
		for _, ip := range r.IPs {
			if ip.Is4() {
				n.Annotations[annotationPublicIP] = ip.String()
			} else {
				n.Annotations[annotationPublicIPv6] = ip.String()
			}
		}
	}
	if !r.cluster.DisableCloudController {
		n.Spec.ProviderID = "k3s://" + r.Name
	}
	for _, l := range r.Labels {
		key, value, _ := strings.Cut(l, "=")
		n.Labels[key] = value
	}
	for _, t := range r.Taints {
		i := strings.LastIndex(t, ":")
		if i < 0 {
			return nil, fmt.Errorf("invalid node-taint %q", t)
		}
		key, value, _ := strings.Cut(t[:i], "=")
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(t[i+1:])})
	}
	return n, nil
}

// fill writes the status of a healthy node.
func (r *registration) fill(n *corev1.Node) {
	now := metav1.Now()
	n.Status.Addresses = nil
	for _, ip := range r.IPs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	for _, ip := range r.ExternalIPs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip.String()})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: r.Name})

	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(totalMemory(), resource.BinarySI),
		corev1.ResourcePods:   *resource.NewQuantity(110, resource.DecimalSI),
	}
	n.Status.Allocatable = n.Status.Capacity
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		MachineID:               firstLine("/etc/machine-id"),
		BootID:                  firstLine("/proc/sys/kernel/random/boot_id"),
		KernelVersion:           firstLine("/proc/sys/kernel/osrelease"),
		OSImage:                 osImage(),
		OperatingSystem:         runtime.GOOS,
		Architecture:            runtime.GOARCH,
		ContainerRuntimeVersion: "standin://0",
		KubeletVersion:          r.Version,
	}
	wanted := append([]corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: "kubelet has no disk pressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
	}, r.Conditions...)
	for _, w := range wanted {
		w.LastHeartbeatTime, w.LastTransitionTime = now, now
		setCondition(n, w)
	}
}

func setCondition(n *corev1.Node, w corev1.NodeCondition) {
	for i, c := range n.Status.Conditions {
		if c.Type == w.Type {
			if c.Status == w.Status {
				w.LastTransitionTime = c.LastTransitionTime
			}
			n.Status.Conditions[i] = w
			return
		}
	}
	n.Status.Conditions = append(n.Status.Conditions, w)
}

// statusDue tells whether a status has to be written: it differs, or is old.
func (r *registration) statusDue(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionTrue || time.Since(c.LastHeartbeatTime.Time) > statusMaxAge
		}
	}
	return true
}

func joinAddrs(as []netip.Addr) string {
	var out []string
	for _, a := range as {
		out = append(out, a.String())
	}
	return strings.Join(out, ",")
}

func firstLine(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	return strings.TrimSpace(line)
}

func osImage() string {
	raw, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "Linux"
	}
	for _, l := range strings.Split(string(raw), "\n") {
		if v, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return "Linux"
}

func totalMemory() int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 1 << 30
	}
	var kb int64
	if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kb); err != nil {
		return 1 << 30
	}
	return kb << 10
}
