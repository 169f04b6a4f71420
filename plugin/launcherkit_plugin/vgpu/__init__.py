"""vGPU: made when needed, gone when not, never lost. Mediated devices, and VFs of SR-IOV vGPU cards."""
