"""An emulated machine with an IOMMU, real VFIO and SR-IOV for tests of what hands out devices.

It depends neither on `launcherkit` nor on its device plugin.
"""
