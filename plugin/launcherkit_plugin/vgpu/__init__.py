"""vGPUs, which are created when needed and removed when unused: mediated devices, and VFs of SR-IOV vGPU cards."""
