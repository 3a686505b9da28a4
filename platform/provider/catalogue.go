package provider

// LocalRegion and LocalSizes are what machines on this host come in: the adapter tells them, and an account starts with them.
func LocalRegion() Region { return Region{Name: "local", Code: "local", Description: "This host."} }

// LocalSizes are the sizes of machines on this host.
func LocalSizes() []InstanceType {
	return []InstanceType{
		{Name: "local-small", Code: "local-small", Description: "1 CPU, 1 GiB", VCPUs: 1, MemoryMB: 1024, StorageGB: 10},
		{Name: "local-medium", Code: "local-medium", Description: "2 CPUs, 2 GiB", VCPUs: 2, MemoryMB: 2048, StorageGB: 20},
		{Name: "local-large", Code: "local-large", Description: "4 CPUs, 4 GiB", VCPUs: 4, MemoryMB: 4096, StorageGB: 40},
	}
}
