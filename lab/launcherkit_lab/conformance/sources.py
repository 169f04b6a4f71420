"""Where expectations of device plugins are written."""

API = "kubernetes/kubelet, pkg/apis/deviceplugin/v1beta1/api.proto"
DOCS = "kubernetes.io, Concepts, Device Plugins"
MANAGER = "kubernetes, pkg/kubelet/cm/devicemanager/manager.go"
VFIO = "Linux, Documentation/driver-api/vfio.rst"
KUBEVIRT = "kubevirt, pkg/util/util.go, ResourceNameToEnvVar"
LAB = "what follows for a pod with a VM"
