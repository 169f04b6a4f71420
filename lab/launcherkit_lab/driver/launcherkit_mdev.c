// SPDX-License-Identifier: GPL-2.0-only
/*
 * A vGPU manager for tests: real mediated devices on an emulated PCI function, and no GPU.
 *
 * It binds whatever function it is named to in driver_override, QEMU's `edu` for example. Each one becomes a parent with
 * a card's framebuffer to give away, and offers types as NVIDIA's driver does. An mdev is a vfio-pci device that QEMU
 * can open: a guest finds a 3D controller on its PCI bus, with a page of memory behind BAR 0.
 *
 * It can migrate: its state is what configuration space and BAR hold. It has no log of the pages that it writes to, as
 * Debian's kernels can't hand one out: QEMU wants to be told that it may migrate such a device.
 *
 * Containers use the function itself by its DRM nodes, which can do nothing but be opened.
 */
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_gem.h>
#include <drm/drm_ioctl.h>
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/mdev.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/vfio.h>
#include <linux/vfio_pci_core.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "the mdev interface that this is written for came with Linux 6.1"
#endif

/* PCI IDs of the vGPU: vendor of QEMU's own devices, which has no such one. The subsystem's device is the type's number. */
#define VGPU_VENDOR 0x1234
#define VGPU_DEVICE 0x7e57
#define BAR_SIZE PAGE_SIZE
#define TYPES 2

static unsigned int framebuffer = 4096;
module_param(framebuffer, uint, 0444);
MODULE_PARM_DESC(framebuffer, "MiB that each parent has for its vGPUs");

static bool mixed;
module_param(mixed, bool, 0644);
MODULE_PARM_DESC(mixed, "allow vGPUs of different types on one parent");

struct vgpu_type {
	struct mdev_type core;
	unsigned int number;
	unsigned int mib;
};

struct gpu {
	struct mdev_parent core;
	struct drm_device *drm;
	struct mdev_type *offered[TYPES];
	struct vgpu_type types[TYPES];
	struct mutex lock; /* for what follows */
	unsigned int used_mib;
	unsigned int count;
	struct vgpu_type *in_use; /* the type of the last vGPU made; of all of them unless mixed */
};

struct vgpu {
	struct vfio_device vdev;
	struct gpu *gpu;
	struct vgpu_type *type;
	struct mutex lock; /* for what follows */
	u8 config[PCI_CFG_SPACE_SIZE];
	u8 bar[BAR_SIZE];
	struct mutex moving; /* for what follows */
	enum vfio_device_mig_state state;
	struct file *stream; /* of its state, while that is saved or restored */
};

/* What a parent can still give away. */

static unsigned int room_for(struct gpu *gpu, struct vgpu_type *type)
{
	lockdep_assert_held(&gpu->lock);
	if (gpu->count && gpu->in_use != type && !mixed)
		return 0;
	return (framebuffer - gpu->used_mib) / type->mib;
}

static int take(struct gpu *gpu, struct vgpu_type *type)
{
	int ret = -ENOSPC;

	mutex_lock(&gpu->lock);
	if (room_for(gpu, type)) {
		gpu->in_use = type;
		gpu->used_mib += type->mib;
		gpu->count++;
		ret = 0;
	}
	mutex_unlock(&gpu->lock);
	return ret;
}

static void give_back(struct gpu *gpu, struct vgpu_type *type)
{
	mutex_lock(&gpu->lock);
	gpu->used_mib -= type->mib;
	gpu->count--;
	mutex_unlock(&gpu->lock);
}

/* The vGPU as a VFIO device. */

static void reset(struct vgpu *vgpu)
{
	u8 *config = vgpu->config;

	mutex_lock(&vgpu->lock);
	memset(config, 0, sizeof(vgpu->config));
	memset(vgpu->bar, 0, sizeof(vgpu->bar));
	*(__le16 *)(config + PCI_VENDOR_ID) = cpu_to_le16(VGPU_VENDOR);
	*(__le16 *)(config + PCI_DEVICE_ID) = cpu_to_le16(VGPU_DEVICE);
	*(__le16 *)(config + PCI_CLASS_DEVICE) = cpu_to_le16(PCI_CLASS_DISPLAY_3D);
	*(__le16 *)(config + PCI_SUBSYSTEM_VENDOR_ID) = cpu_to_le16(VGPU_VENDOR);
	*(__le16 *)(config + PCI_SUBSYSTEM_ID) = cpu_to_le16(vgpu->type->number);
	mutex_unlock(&vgpu->lock);
}

/* Its migration. */

#define STATE_MAGIC 0x6c6b7601

/* What goes from one vGPU to another of the same type. */
struct state {
	__le32 magic;
	__le32 number; /* of its type */
	u8 config[PCI_CFG_SPACE_SIZE];
	u8 bar[BAR_SIZE];
} __packed;

/* A file from which a vGPU's state is read, or into which another's is written. */
struct stream {
	struct mutex lock; /* for what follows */
	bool ended;
	size_t at;
	struct state state;
};

static ssize_t stream_move(struct file *file, char __user *to, const char __user *from, size_t count)
{
	struct stream *stream = file->private_data;
	u8 *here;
	ssize_t ret;

	mutex_lock(&stream->lock);
	if (stream->ended) {
		ret = -ENODEV;
		goto unlock;
	}
	here = (u8 *)&stream->state + stream->at;
	ret = min_t(size_t, count, sizeof(stream->state) - stream->at);
	if (from && ret < count)
		ret = -ENOSPC;
	else if (to ? copy_to_user(to, here, ret) : copy_from_user(here, from, ret))
		ret = -EFAULT;
	else
		stream->at += ret;
unlock:
	mutex_unlock(&stream->lock);
	return ret;
}

static ssize_t stream_read(struct file *file, char __user *buf, size_t count, loff_t *ppos)
{
	return stream_move(file, buf, NULL, count);
}

static ssize_t stream_write(struct file *file, const char __user *buf, size_t count, loff_t *ppos)
{
	return stream_move(file, NULL, buf, count);
}

static int stream_release(struct inode *inode, struct file *file)
{
	struct stream *stream = file->private_data;

	mutex_destroy(&stream->lock);
	kfree(stream);
	return 0;
}

static const struct file_operations saving = {
	.owner = THIS_MODULE,
	.read = stream_read,
	.release = stream_release,
};

static const struct file_operations restoring = {
	.owner = THIS_MODULE,
	.write = stream_write,
	.release = stream_release,
};

static void end_stream(struct vgpu *vgpu)
{
	struct stream *stream;

	lockdep_assert_held(&vgpu->moving);
	if (!vgpu->stream)
		return;
	stream = vgpu->stream->private_data;
	mutex_lock(&stream->lock);
	stream->ended = true;
	mutex_unlock(&stream->lock);
	fput(vgpu->stream);
	vgpu->stream = NULL;
}

/* Begin a stream: one reference is the vGPU's, one the caller's. */
static struct file *begin_stream(struct vgpu *vgpu, const struct file_operations *direction)
{
	struct stream *stream = kzalloc(sizeof(*stream), GFP_KERNEL_ACCOUNT);
	struct file *file;

	if (!stream)
		return ERR_PTR(-ENOMEM);
	mutex_init(&stream->lock);
	file = anon_inode_getfile("launcherkit-vgpu", direction, stream, direction == &saving ? O_RDONLY : O_WRONLY);
	if (IS_ERR(file)) {
		kfree(stream);
		return file;
	}
	stream_open(file_inode(file), file);
	if (direction == &saving) {
		mutex_lock(&vgpu->lock);
		stream->state.magic = cpu_to_le32(STATE_MAGIC);
		stream->state.number = cpu_to_le32(vgpu->type->number);
		memcpy(stream->state.config, vgpu->config, sizeof(vgpu->config));
		memcpy(stream->state.bar, vgpu->bar, sizeof(vgpu->bar));
		mutex_unlock(&vgpu->lock);
	}
	vgpu->stream = get_file(file);
	return file;
}

/* Take over what was written into the stream, if that is the whole state of a vGPU of the same type. */
static int restore(struct vgpu *vgpu)
{
	struct stream *stream = vgpu->stream->private_data;
	struct state *state = &stream->state;
	int ret = -EINVAL;

	mutex_lock(&stream->lock);
	if (stream->at == sizeof(*state) && state->magic == cpu_to_le32(STATE_MAGIC) &&
	    state->number == cpu_to_le32(vgpu->type->number)) {
		mutex_lock(&vgpu->lock);
		memcpy(vgpu->config, state->config, sizeof(vgpu->config));
		memcpy(vgpu->bar, state->bar, sizeof(vgpu->bar));
		mutex_unlock(&vgpu->lock);
		ret = 0;
	}
	mutex_unlock(&stream->lock);
	return ret;
}

static struct file *step(struct vgpu *vgpu, enum vfio_device_mig_state next)
{
	struct file *file = NULL;

	if (next == VFIO_DEVICE_STATE_STOP_COPY)
		file = begin_stream(vgpu, &saving);
	else if (next == VFIO_DEVICE_STATE_RESUMING)
		file = begin_stream(vgpu, &restoring);
	else if (vgpu->state == VFIO_DEVICE_STATE_RESUMING)
		file = ERR_PTR(restore(vgpu)); /* none where it went well */
	if (IS_ERR(file))
		return file;
	if (vgpu->state == VFIO_DEVICE_STATE_STOP_COPY || vgpu->state == VFIO_DEVICE_STATE_RESUMING)
		end_stream(vgpu);
	vgpu->state = next; /* it does nothing by itself, so that running and stopped are the same to it */
	return file;
}

static struct file *set_state(struct vfio_device *vdev, enum vfio_device_mig_state wanted)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, vdev);
	enum vfio_device_mig_state next;
	struct file *file = NULL;
	int ret;

	mutex_lock(&vgpu->moving);
	while (vgpu->state != wanted) {
		ret = vfio_mig_get_next_state(vdev, vgpu->state, wanted, &next);
		file = ret ? ERR_PTR(ret) : step(vgpu, next);
		if (IS_ERR(file))
			break;
	}
	mutex_unlock(&vgpu->moving);
	return file;
}

static int get_state(struct vfio_device *vdev, enum vfio_device_mig_state *state)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, vdev);

	mutex_lock(&vgpu->moving);
	*state = vgpu->state;
	mutex_unlock(&vgpu->moving);
	return 0;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static int data_size(struct vfio_device *vdev, unsigned long *length)
{
	*length = sizeof(struct state);
	return 0;
}
#endif

static const struct vfio_migration_ops migration_ops = {
	.migration_set_state = set_state,
	.migration_get_state = get_state,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	.migration_get_data_size = data_size,
#endif
};

/* As it is when it has been opened, and after a reset. */
static void run(struct vgpu *vgpu)
{
	mutex_lock(&vgpu->moving);
	end_stream(vgpu);
	vgpu->state = VFIO_DEVICE_STATE_RUNNING;
	mutex_unlock(&vgpu->moving);
}

static int vgpu_init(struct vfio_device *vdev)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, vdev);
	struct mdev_device *mdev = to_mdev_device(vdev->dev);
	struct vgpu_type *type = container_of(mdev->type, struct vgpu_type, core);
	struct gpu *gpu = container_of(mdev->type->parent, struct gpu, core);
	int ret = take(gpu, type);

	if (ret)
		return ret;
	vgpu->gpu = gpu;
	vgpu->type = type;
	mutex_init(&vgpu->lock);
	mutex_init(&vgpu->moving);
	vdev->migration_flags = VFIO_MIGRATION_STOP_COPY | VFIO_MIGRATION_P2P;
	vdev->mig_ops = &migration_ops;
	reset(vgpu);
	return 0;
}

static void vgpu_release(struct vfio_device *vdev)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, vdev);

	give_back(vgpu->gpu, vgpu->type);
	mutex_destroy(&vgpu->lock);
	mutex_destroy(&vgpu->moving);
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	vfio_free_device(vdev); /* the core does it later on */
#endif
}

static int vgpu_open(struct vfio_device *vdev)
{
	run(container_of(vdev, struct vgpu, vdev));
	return 0;
}

static void vgpu_close(struct vfio_device *vdev)
{
	run(container_of(vdev, struct vgpu, vdev));
}

/* Which bits of a byte in configuration space a guest may change. */
static u8 writable(size_t at)
{
	switch (at) {
	case PCI_COMMAND:
		return PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	case PCI_CACHE_LINE_SIZE:
	case PCI_INTERRUPT_LINE:
		return 0xff;
	case PCI_BASE_ADDRESS_0 ... PCI_BASE_ADDRESS_0 + 3:
		return ~(BAR_SIZE - 1) >> 8 * (at - PCI_BASE_ADDRESS_0);
	}
	return 0;
}

/* The memory behind a region, and its size. */
static u8 *region(struct vgpu *vgpu, unsigned int index, size_t *size)
{
	switch (index) {
	case VFIO_PCI_BAR0_REGION_INDEX:
		*size = sizeof(vgpu->bar);
		return vgpu->bar;
	case VFIO_PCI_CONFIG_REGION_INDEX:
		*size = sizeof(vgpu->config);
		return vgpu->config;
	}
	*size = 0;
	return NULL;
}

static ssize_t vgpu_read(struct vfio_device *vdev, char __user *buf, size_t count, loff_t *ppos)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, vdev);
	u64 at = *ppos & VFIO_PCI_OFFSET_MASK;
	unsigned long left;
	size_t size;
	u8 *memory = region(vgpu, VFIO_PCI_OFFSET_TO_INDEX(*ppos), &size);

	if (at >= size)
		return -EINVAL;
	count = min_t(size_t, count, size - at);
	mutex_lock(&vgpu->lock);
	left = copy_to_user(buf, memory + at, count);
	mutex_unlock(&vgpu->lock);
	if (left)
		return -EFAULT;
	*ppos += count;
	return count;
}

static ssize_t vgpu_write(struct vfio_device *vdev, const char __user *buf, size_t count, loff_t *ppos)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, vdev);
	u64 at = *ppos & VFIO_PCI_OFFSET_MASK;
	size_t size, i;
	u8 *memory = region(vgpu, VFIO_PCI_OFFSET_TO_INDEX(*ppos), &size);
	u8 *given;

	if (at >= size)
		return -EINVAL;
	count = min_t(size_t, count, size - at);
	given = memdup_user(buf, count);
	if (IS_ERR(given))
		return PTR_ERR(given);
	mutex_lock(&vgpu->lock);
	for (i = 0; i < count; i++) {
		u8 mask = memory == vgpu->config ? writable(at + i) : 0xff;

		memory[at + i] = (memory[at + i] & ~mask) | (given[i] & mask);
	}
	mutex_unlock(&vgpu->lock);
	kfree(given);
	*ppos += count;
	return count;
}

static int device_info(void __user *arg)
{
	size_t known = offsetofend(struct vfio_device_info, num_irqs);
	struct vfio_device_info info;

	if (copy_from_user(&info, arg, known))
		return -EFAULT;
	if (info.argsz < known)
		return -EINVAL;
	info.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
	info.num_regions = VFIO_PCI_NUM_REGIONS;
	info.num_irqs = VFIO_PCI_MSIX_IRQ_INDEX + 1;
	return copy_to_user(arg, &info, known) ? -EFAULT : 0;
}

/* What a region is like; false where there is none of that number. */
static bool describe(struct vgpu *vgpu, struct vfio_region_info *info)
{
	size_t size;

	if (info->index >= VFIO_PCI_NUM_REGIONS)
		return false;
	info->flags = region(vgpu, info->index, &size) ? VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE : 0;
	info->size = size;
	info->offset = VFIO_PCI_INDEX_TO_OFFSET(info->index);
	return true;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 19, 0)
static int region_info(struct vfio_device *vdev, struct vfio_region_info *info, struct vfio_info_cap *caps)
{
	return describe(container_of(vdev, struct vgpu, vdev), info) ? 0 : -EINVAL;
}
#else
static int region_info(struct vgpu *vgpu, void __user *arg)
{
	size_t known = offsetofend(struct vfio_region_info, offset);
	struct vfio_region_info info;

	if (copy_from_user(&info, arg, known))
		return -EFAULT;
	if (info.argsz < known || !describe(vgpu, &info))
		return -EINVAL;
	info.cap_offset = 0;
	return copy_to_user(arg, &info, known) ? -EFAULT : 0;
}
#endif

/* It has no interrupt of any kind. */
static int irq_info(void __user *arg)
{
	size_t known = offsetofend(struct vfio_irq_info, count);
	struct vfio_irq_info info;

	if (copy_from_user(&info, arg, known))
		return -EFAULT;
	if (info.argsz < known || info.index > VFIO_PCI_MSIX_IRQ_INDEX)
		return -EINVAL;
	info.flags = 0;
	info.count = 0;
	return copy_to_user(arg, &info, known) ? -EFAULT : 0;
}

/* A display in a region, as NVIDIA's has one, on which the guest has drawn nothing yet. */
static int gfx_plane(void __user *arg)
{
	size_t known = offsetofend(struct vfio_device_gfx_plane_info, region_index);
	struct vfio_device_gfx_plane_info info;

	if (copy_from_user(&info, arg, known))
		return -EFAULT;
	if (info.argsz < known || !(info.flags & VFIO_GFX_PLANE_TYPE_REGION))
		return -EINVAL;
	if (info.flags & VFIO_GFX_PLANE_TYPE_PROBE)
		return 0;
	memset_startat(&info, 0, drm_format);
	return copy_to_user(arg, &info, known) ? -EFAULT : 0;
}

static long vgpu_ioctl(struct vfio_device *vdev, unsigned int cmd, unsigned long arg)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, vdev);

	switch (cmd) {
	case VFIO_DEVICE_GET_INFO:
		return device_info((void __user *)arg);
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 19, 0)
	case VFIO_DEVICE_GET_REGION_INFO:
		return region_info(vgpu, (void __user *)arg);
#endif
	case VFIO_DEVICE_GET_IRQ_INFO:
		return irq_info((void __user *)arg);
	case VFIO_DEVICE_QUERY_GFX_PLANE:
		return gfx_plane((void __user *)arg);
	case VFIO_DEVICE_RESET:
		reset(vgpu);
		run(vgpu);
		return 0;
	}
	return -ENOTTY;
}

/* There is no `request`: who removes a vGPU that is open waits, as for NVIDIA's, until its user has let go. */
static const struct vfio_device_ops vgpu_ops = {
	.name = "launcherkit-vgpu",
	.init = vgpu_init,
	.release = vgpu_release,
	.open_device = vgpu_open,
	.close_device = vgpu_close,
	.read = vgpu_read,
	.write = vgpu_write,
	.ioctl = vgpu_ioctl,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 19, 0)
	.get_region_info_caps = region_info,
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	.bind_iommufd = vfio_iommufd_emulated_bind,
	.unbind_iommufd = vfio_iommufd_emulated_unbind,
	.attach_ioas = vfio_iommufd_emulated_attach_ioas,
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	.detach_ioas = vfio_iommufd_emulated_detach_ioas,
#endif
};

/* The vGPU as a mediated device. */

static int vgpu_probe(struct mdev_device *mdev)
{
	struct vgpu *vgpu = vfio_alloc_device(vgpu, vdev, &mdev->dev, &vgpu_ops);
	int ret;

	if (IS_ERR(vgpu))
		return PTR_ERR(vgpu);
	ret = vfio_register_emulated_iommu_dev(&vgpu->vdev);
	if (ret) {
		vfio_put_device(&vgpu->vdev);
		return ret;
	}
	dev_set_drvdata(&mdev->dev, vgpu);
	return 0;
}

static void vgpu_remove(struct mdev_device *mdev)
{
	struct vgpu *vgpu = dev_get_drvdata(&mdev->dev);

	vfio_unregister_group_dev(&vgpu->vdev);
	vfio_put_device(&vgpu->vdev);
}

static unsigned int available(struct mdev_type *core)
{
	struct vgpu_type *type = container_of(core, struct vgpu_type, core);
	struct gpu *gpu = container_of(core->parent, struct gpu, core);
	unsigned int room;

	mutex_lock(&gpu->lock);
	room = room_for(gpu, type);
	mutex_unlock(&gpu->lock);
	return room;
}

static ssize_t description(struct mdev_type *core, char *buf)
{
	struct vgpu_type *type = container_of(core, struct vgpu_type, core);

	return sysfs_emit(buf, "num_heads=4, frl_config=60, framebuffer=%uM, max_resolution=5120x2880, max_instance=%u\n",
			  type->mib, framebuffer / type->mib);
}

static struct mdev_driver vgpu_driver = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.probe = vgpu_probe,
	.remove = vgpu_remove,
	.get_available = available,
	.show_description = description,
	.driver = {
		.name = "nvidia-vgpu-vfio",
		.owner = THIS_MODULE,
		.mod_name = KBUILD_MODNAME,
	},
};

/* The parent. */

DEFINE_DRM_GEM_FOPS(gpu_fops);

static const struct drm_driver gpu_drm = {
	.driver_features = DRIVER_GEM | DRIVER_RENDER,
	.fops = &gpu_fops,
	.name = "launcherkit",
	.desc = "vGPUs without a GPU, for tests",
	.major = 1,
};

static int add_nodes(struct gpu *gpu, struct device *parent)
{
	int ret;

	gpu->drm = drm_dev_alloc(&gpu_drm, parent);
	if (IS_ERR(gpu->drm))
		return PTR_ERR(gpu->drm);
	ret = drm_dev_register(gpu->drm, 0);
	if (ret)
		drm_dev_put(gpu->drm);
	return ret;
}

static void remove_nodes(struct gpu *gpu)
{
	drm_dev_unplug(gpu->drm);
	drm_dev_put(gpu->drm);
}

static int gpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	static const struct {
		const char *id, *name;
		unsigned int number, mib;
	} offer[TYPES] = {
		{ "222", "GRID T4-1Q", 222, 1024 },
		{ "223", "GRID T4-2Q", 223, 2048 },
	};
	struct gpu *gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	int i, ret;

	if (!gpu)
		return -ENOMEM;
	mutex_init(&gpu->lock);
	for (i = 0; i < TYPES; i++) {
		gpu->types[i].number = offer[i].number;
		gpu->types[i].mib = offer[i].mib;
		gpu->types[i].core.sysfs_name = offer[i].id;
		gpu->types[i].core.pretty_name = offer[i].name;
		gpu->offered[i] = &gpu->types[i].core;
	}
	pci_set_drvdata(pdev, gpu);
	ret = add_nodes(gpu, &pdev->dev);
	if (ret)
		goto no_nodes;
	ret = mdev_register_parent(&gpu->core, &pdev->dev, &vgpu_driver, gpu->offered, TYPES);
	if (ret)
		goto no_parent;
	return 0;

no_parent:
	remove_nodes(gpu);
no_nodes:
	kfree(gpu);
	return ret;
}

static void gpu_remove(struct pci_dev *pdev)
{
	struct gpu *gpu = pci_get_drvdata(pdev);

	mdev_unregister_parent(&gpu->core);
	remove_nodes(gpu);
	mutex_destroy(&gpu->lock);
	kfree(gpu);
}

/* Types are called after the parent's driver: nvidia-222. No table of IDs: only driver_override binds it. */
static struct pci_driver gpu_driver = {
	.name = "nvidia",
	.probe = gpu_probe,
	.remove = gpu_remove,
};

static int __init start(void)
{
	int ret = mdev_register_driver(&vgpu_driver);

	if (ret)
		return ret;
	ret = pci_register_driver(&gpu_driver);
	if (ret)
		mdev_unregister_driver(&vgpu_driver);
	return ret;
}

static void __exit stop(void)
{
	pci_unregister_driver(&gpu_driver);
	mdev_unregister_driver(&vgpu_driver);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("vGPUs without a GPU, for tests");
MODULE_LICENSE("GPL");
