package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

const adminKubeconfig = "/etc/rancher/k3s/k3s.yaml"

// kubectl runs the real one. On a server it finds the administrator's
// configuration by itself, as K3s' does.
func kubectl(args []string) int {
	if os.Getenv("KUBECONFIG") == "" {
		if _, err := os.Stat(adminKubeconfig); err == nil {
			if err := os.Setenv("KUBECONFIG", adminKubeconfig); err != nil {
				fatal(err)
				return 1
			}
		}
	}
	os.Args = append([]string{"kubectl"}, args...)
	command := cmd.NewDefaultKubectlCommand()
	if err := cli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err) // prints it and exits with its code
	}
	return 0
}
