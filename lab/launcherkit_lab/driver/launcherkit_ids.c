// SPDX-License-Identifier: GPL-2.0-only
/*
 * Other vendor and device IDs for functions that QEMU emulates with its own: what looks at a function by its numbers,
 * the kernel's drivers and sysfs among it, takes it for another one. Reads of the first four bytes of configuration
 * space are answered here; all else is the function's. A function that was found before is to be removed and found anew.
 */
#include <linux/module.h>
#include <linux/pci.h>

#define FUNCTIONS 64

static char *ids[FUNCTIONS];
static int given;
module_param_array(ids, charp, &given, 0444);
MODULE_PARM_DESC(ids, "functions with their vendor and device IDs: 0000:05:00.0=10de:2204,...");

static struct renamed {
	struct pci_bus *bus;
	struct pci_ops *before;
	unsigned int devfn;
	u32 id;
} renamed[FUNCTIONS];
static int count;

static int config_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value);
static int config_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value);
static struct pci_ops ops = { .read = config_read, .write = config_write };

static struct pci_ops *before(struct pci_bus *bus)
{
	int i;

	for (i = 0; i < count; i++)
		if (renamed[i].bus == bus)
			return renamed[i].before;
	return NULL;
}

static int config_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	u32 all = size == 4 ? ~0U : (1U << (8 * size)) - 1;
	int i, code = before(bus)->read(bus, devfn, where, size, value);

	/* What isn't there says all ones. */
	if (code || where >= 4 || (*value & all) == all)
		return code;
	for (i = 0; i < count; i++)
		if (renamed[i].bus == bus && renamed[i].devfn == devfn)
			*value = renamed[i].id >> (8 * where) & all;
	return code;
}

static int config_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	return before(bus)->write(bus, devfn, where, size, value);
}

static int __init ids_init(void)
{
	unsigned int domain, bus, slot, function, vendor, device;
	int i;

	for (i = 0; i < given; i++) {
		if (sscanf(ids[i], "%x:%x:%x.%x=%x:%x", &domain, &bus, &slot, &function, &vendor, &device) != 6)
			return -EINVAL;
		renamed[i].bus = pci_find_bus(domain, bus);
		if (!renamed[i].bus)
			return -ENODEV;
		renamed[i].devfn = PCI_DEVFN(slot, function);
		renamed[i].id = device << 16 | vendor;
		renamed[i].before = renamed[i].bus->ops;
	}
	count = given;
	for (i = 0; i < count; i++)
		pci_bus_set_ops(renamed[i].bus, &ops);
	return 0;
}

/* Without an end: a bus may have gone by then, and the machine ends with its module. */
module_init(ids_init);
MODULE_DESCRIPTION("Other IDs for emulated functions");
MODULE_LICENSE("GPL");
