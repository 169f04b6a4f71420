// SPDX-License-Identifier: GPL-2.0-only
/*
 * A vGPU manager for tests: virtual functions that become vGPUs by a type that is written to them, and no GPU.
 *
 * It binds whatever virtual function it is named to in driver_override, QEMU's NVMe controllers for example, and is a
 * VFIO driver for it, as NVIDIA's is for cards of Ampere and later. The function gets the files creatable_vgpu_types
 * and current_vgpu_type in a folder nvidia. All functions of one card share its framebuffer. While it is bound a
 * function is a 3D controller with IDs of its own to the kernel; a guest sees these IDs, and else what the function is.
 *
 * What is not known of NVIDIA's is not here: placement, GPU instances, parameters.
 */
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/version.h>
#include <linux/vfio.h>
#include <linux/vfio_pci_core.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "the interface of VFIO's drivers that this is written for came with Linux 6.1"
#endif

/* PCI IDs of a vGPU: vendor of QEMU's own devices, which has no such one. */
#define VGPU_VENDOR 0x1234
#define VGPU_DEVICE 0x7e57

static unsigned int framebuffer = 4096;
module_param(framebuffer, uint, 0444);
MODULE_PARM_DESC(framebuffer, "MiB that each card has for its vGPUs");

static const struct vgpu_type {
	unsigned int number;
	unsigned int mib;
	const char *name;
} types[] = {
	{ 557, 1024, "NVIDIA A40-1B" },
	{ 558, 2048, "NVIDIA A40-2B" },
};

struct vf {
	struct vfio_pci_core_device core; /* the first: the driver's data of a function is its address */
	struct list_head others;
	const struct vgpu_type *type; /* NULL: it is no vGPU */
	bool open;
	/* What the function was before. */
	unsigned short vendor, device;
	unsigned int class;
};

static DEFINE_MUTEX(lock); /* for what follows, and for type and open of each */
static LIST_HEAD(vfs);

static struct vf *vf_of(struct device *dev)
{
	return container_of(dev_get_drvdata(dev), struct vf, core);
}

/* Whether the card of a function has room for one more of a type. All vGPUs of a card are of one type. */
static bool has_room(struct vf *vf, const struct vgpu_type *type)
{
	unsigned int used = 0;
	struct vf *other;

	lockdep_assert_held(&lock);
	list_for_each_entry(other, &vfs, others) {
		if (!other->type || pci_physfn(other->core.pdev) != pci_physfn(vf->core.pdev))
			continue;
		if (other->type != type)
			return false;
		used += other->type->mib;
	}
	return used + type->mib <= framebuffer;
}

/* The files. */

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct vf *vf = vf_of(dev);
	ssize_t length = sysfs_emit(buf, "ID    : vGPU Name\n");
	int i;

	mutex_lock(&lock);
	for (i = 0; i < ARRAY_SIZE(types) && !vf->type; i++)
		if (has_room(vf, &types[i]))
			length += sysfs_emit_at(buf, length, "%-6u: %s\n", types[i].number, types[i].name);
	mutex_unlock(&lock);
	return length;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct vf *vf = vf_of(dev);
	unsigned int number;

	mutex_lock(&lock);
	number = vf->type ? vf->type->number : 0;
	mutex_unlock(&lock);
	return sysfs_emit(buf, "%u\n", number);
}

/* What becomes of a function to which a number was written, 0 for no type. */
static int set_type(struct vf *vf, unsigned int number)
{
	int i;

	lockdep_assert_held(&lock);
	if (vf->open)
		return -EBUSY;
	if (!number) {
		vf->type = NULL;
		return 0;
	}
	if (vf->type)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(types); i++) {
		if (types[i].number != number)
			continue;
		if (!has_room(vf, &types[i]))
			return -ENOSPC;
		vf->type = &types[i];
		return 0;
	}
	return -EINVAL;
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	unsigned int number;
	int ret = kstrtouint(buf, 10, &number);

	if (ret)
		return ret;
	mutex_lock(&lock);
	ret = set_type(vf_of(dev), number);
	mutex_unlock(&lock);
	return ret ?: count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static struct attribute *files[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	NULL,
};

static const struct attribute_group folder = {
	.name = "nvidia",
	.attrs = files,
};

static const struct attribute_group *folders[] = { &folder, NULL };

/* The vGPU as a VFIO device: the function itself, as vfio-pci would give it away, once it has a type. */

static int vf_open(struct vfio_device *vdev)
{
	struct vf *vf = container_of(vdev, struct vf, core.vdev);
	int ret;

	mutex_lock(&lock);
	ret = vf->type ? 0 : -ENODEV;
	vf->open = !ret;
	mutex_unlock(&lock);
	if (ret)
		return ret;
	ret = vfio_pci_core_enable(&vf->core);
	if (!ret) {
		vfio_pci_core_finish_enable(&vf->core);
		return 0;
	}
	mutex_lock(&lock);
	vf->open = false;
	mutex_unlock(&lock);
	return ret;
}

static void vf_close(struct vfio_device *vdev)
{
	struct vf *vf = container_of(vdev, struct vf, core.vdev);

	vfio_pci_core_close_device(vdev);
	mutex_lock(&lock);
	vf->open = false;
	mutex_unlock(&lock);
}

static const struct vfio_device_ops vf_ops = {
	.name = "launcherkit-vgpu-vf",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = vf_open,
	.close_device = vf_close,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
	.match_token_uuid = vfio_pci_core_match_token_uuid,
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 19, 0)
	.get_region_info_caps = vfio_pci_ioctl_get_region_info,
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
#endif
};

static void be(struct vf *vf, unsigned short vendor, unsigned short device, unsigned int class)
{
	struct pci_dev *pdev = vf->core.pdev;

	pdev->vendor = vendor;
	pdev->device = device;
	pdev->class = class;
}

static int vf_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct vf *vf;
	int ret;

	if (!pdev->is_virtfn)
		return -ENODEV;
	vf = vfio_alloc_device(vf, core.vdev, &pdev->dev, &vf_ops);
	if (IS_ERR(vf))
		return PTR_ERR(vf);
	vf->vendor = pdev->vendor;
	vf->device = pdev->device;
	vf->class = pdev->class;
	be(vf, VGPU_VENDOR, VGPU_DEVICE, PCI_CLASS_DISPLAY_3D << 8);
	dev_set_drvdata(&pdev->dev, &vf->core);
	mutex_lock(&lock);
	list_add(&vf->others, &vfs);
	mutex_unlock(&lock);
	ret = vfio_pci_core_register_device(&vf->core);
	if (!ret)
		return 0;
	mutex_lock(&lock);
	list_del(&vf->others);
	mutex_unlock(&lock);
	be(vf, vf->vendor, vf->device, vf->class);
	vfio_put_device(&vf->core.vdev);
	return ret;
}

static void vf_remove(struct pci_dev *pdev)
{
	struct vf *vf = vf_of(&pdev->dev);

	vfio_pci_core_unregister_device(&vf->core); /* waits until it is closed */
	mutex_lock(&lock);
	list_del(&vf->others);
	mutex_unlock(&lock);
	be(vf, vf->vendor, vf->device, vf->class);
	vfio_put_device(&vf->core.vdev);
}

/* No table of IDs: only driver_override binds it. */
static struct pci_driver vf_driver = {
	.name = "nvidia",
	.probe = vf_probe,
	.remove = vf_remove,
	.dev_groups = folders,
	.err_handler = &vfio_pci_core_err_handlers,
	.driver_managed_dma = true,
};

module_pci_driver(vf_driver);
MODULE_DESCRIPTION("vGPUs on virtual functions without a GPU, for tests");
MODULE_LICENSE("GPL");
