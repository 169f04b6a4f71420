// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults of PCI functions, for tests of what manages them: drivers that refuse a function, and files that hang.
 *
 * Its parameters are lists of words, which can be changed at any time. What is not in them is as ever. It stays till the
 * machine ends.
 */
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/string.h>

/* A reader may see half of a new list, but never more than this: the last byte stays 0. */
static char refused[1024], hanging[1024];

module_param_string(refused, refused, sizeof(refused), 0644);
MODULE_PARM_DESC(refused, "addresses of functions whose drivers fail to probe them, with EIO: 0000:01:00.0");
module_param_string(hanging, hanging, sizeof(hanging), 0644);
MODULE_PARM_DESC(hanging, "files of functions that hang whoever reads them: 0000:01:00.0/vendor");

static bool is_in(const char *list, const char *word)
{
	const char *at = list;
	size_t length = strlen(word);

	for (; (at = strstr(at, word)); at += length)
		if ((at == list || at[-1] == ' ') && strchr(" \n", at[length]))
			return true;
	return false;
}

/* What is called in place of the kernel's own functions; their arguments are theirs. */

static int refuse(struct device *dev)
{
	return -EIO;
}

static bool hangs(struct kobject *kobj, struct attribute *attr)
{
	char word[64];

	snprintf(word, sizeof(word), "%s/%s", kobject_name(kobj), attr->name);
	return is_in(hanging, word);
}

/* As where a driver waits for a device that doesn't answer: no signal ends it. */
static ssize_t hang(struct kobject *kobj, struct attribute *attr, char *buf)
{
	while (hangs(kobj, attr))
		msleep(100);
	return -EIO;
}

/* Nothing has happened yet at the beginning of a function, so that another one can run in its place. */

static int before_probe(struct kprobe *probe, struct pt_regs *regs)
{
	struct device *dev = (struct device *)regs->di;

	if (!is_in(refused, dev_name(dev)))
		return 0;
	regs->ip = (unsigned long)refuse;
	return 1;
}

static int before_show(struct kprobe *probe, struct pt_regs *regs)
{
	if (!hangs((struct kobject *)regs->di, (struct attribute *)regs->si))
		return 0;
	regs->ip = (unsigned long)hang;
	return 1;
}

/* With it the kernel neither turns the probe into a jump nor forgets the new address. */
static void after(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

static struct kprobe on_probe = {
	.symbol_name = "pci_device_probe",
	.pre_handler = before_probe,
	.post_handler = after,
};
static struct kprobe on_show = {
	.symbol_name = "dev_attr_show",
	.pre_handler = before_show,
	.post_handler = after,
};

static int __init start(void)
{
	int ret = register_kprobe(&on_probe);

	if (ret)
		return ret;
	ret = register_kprobe(&on_show);
	if (ret)
		unregister_kprobe(&on_probe);
	return ret;
}

module_init(start);
MODULE_DESCRIPTION("faults of PCI functions, for tests");
MODULE_LICENSE("GPL");
