/* SPDX-License-Identifier: BSD-3-Clause */
/* Visible-device lists: what a scheduler lets this job use. */
#include "base/log.h"
#include "inventory/inventory_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

#define LIST_MAX 65536

/* The vendor whose GPUs a variable's ordinals count; 0: any (GPU_DEVICE_ORDINAL). */
static uint16_t vendor_of(const char *name)
{
	if (strncmp(name, "CUDA_", 5) == 0 || strncmp(name, "NVIDIA_", 7) == 0)
		return 0x10de;
	if (strncmp(name, "ROCR_", 5) == 0 || strncmp(name, "HIP_", 4) == 0)
		return 0x1002;
	return strncmp(name, "ZE_", 3) == 0 ? 0x8086 : 0;
}

bool inventory_has_vendor(const struct inventory *inventory, uint16_t vendor)
{
	for (size_t i = 0; i < inventory->gpu_count; i++)
		if (inventory->gpus[i].vendor == vendor)
			return true;
	return false;
}

struct lookup {
	struct inventory *inventory;
	const char *name;
	uint16_t vendor; /* 0: all count */
	bool *chosen;	 /* gpu_count of them */
};

/* Does the list apply to this GPU, and may the job see it at all (cgroup)? */
static bool is_counted(const struct lookup *lookup, size_t i)
{
	const struct inventory_gpu *gpu = &lookup->inventory->gpus[i];

	return gpu->allowed && (!lookup->vendor || gpu->vendor == lookup->vendor);
}

static int select_gpu(struct lookup *lookup, size_t i, const char *entry, struct error *err)
{
	if (lookup->chosen[i])
		return error_set(
			err, ERR_DATA,
			"%s lists GPU %s twice, the second time as \"%s\"; expected each GPU once",
			lookup->name, lookup->inventory->gpus[i].pci, entry);
	lookup->chosen[i] = true;
	return 0;
}

static int choose_ordinal(struct lookup *lookup, const char *entry, struct error *err)
{
	size_t count = 0;
	int ordinal = -1;
	char digits[16];

	/* Level Zero's "0.1" is a tile of device 0; berth assigns whole devices. */
	snprintf(digits, sizeof digits, "%.*s",
		 (int)(lookup->vendor == 0x8086 ? strcspn(entry, ".") : strlen(entry)), entry);
	if (strlen(entry) >= sizeof digits ||
	    number_int("ordinal", digits, 0, 65535, &ordinal, NULL) != 0)
		ordinal = -1;
	for (size_t i = 0; i < lookup->inventory->gpu_count; i++) {
		if (!is_counted(lookup, i))
			continue;
		if (ordinal >= 0 && count == (size_t)ordinal)
			return lookup->vendor == 0x8086 && lookup->chosen[i]
				       ? 0
				       : select_gpu(lookup, i, entry, err);
		count++;
	}
	return error_set(err, ERR_DATA,
			 "%s contains \"%s\", which matches no GPU here; expected ordinals below "
			 "%zu, UUIDs or their prefixes",
			 lookup->name, entry, count);
}

static bool same_function(const struct inventory_gpu *a, const struct inventory_gpu *b)
{
	return strcmp(a->pci, b->pci) == 0;
}

/* Does a UUID prefix name this GPU: itself, a MIG device by its older name, or the GPU that a MIG
 * device is on? */
static bool matches_uuid(const struct inventory_gpu *gpu, const char *entry)
{
	size_t length = strlen(entry);

	return (gpu->uuid && strncmp(gpu->uuid, entry, length) == 0) ||
	       (gpu->mig &&
		(strcmp(gpu->mig, entry) == 0 ||
		 (strncmp(entry, "GPU-", 4) == 0 && strncmp(gpu->mig + 4, entry, length) == 0)));
}

static int choose_uuid(struct lookup *lookup, const char *entry, struct error *err)
{
	const struct inventory_gpu *first = NULL;
	bool any_uuid = false;

	for (size_t i = 0; i < lookup->inventory->gpu_count; i++) {
		const struct inventory_gpu *gpu = &lookup->inventory->gpus[i];

		any_uuid = any_uuid || gpu->uuid;
		if (!is_counted(lookup, i) || !matches_uuid(gpu, entry))
			continue;
		/* A GPU's own UUID means all its MIG devices; otherwise one device is meant. */
		if (first && !(strncmp(entry, "GPU-", 4) == 0 && same_function(first, gpu)))
			return error_set(err, ERR_DATA,
					 "%s contains \"%s\", a prefix of more than one GPU's "
					 "UUID; expected a longer prefix",
					 lookup->name, entry);
		first = gpu;
	}
	if (!first)
		return error_set(err, ERR_DATA,
				 "%s contains \"%s\", which is not the UUID of a GPU here%s",
				 lookup->name, entry,
				 any_uuid ? "; check whether these devices belong to another node"
					  : ": UUIDs are unknown here (no NVML)");
	for (size_t i = 0; i < lookup->inventory->gpu_count; i++)
		if (is_counted(lookup, i) && matches_uuid(&lookup->inventory->gpus[i], entry)) {
			int rc = select_gpu(lookup, i, entry, err);

			if (rc)
				return rc;
		}
	return 0;
}

static bool ends_list(const char *entry)
{
	static const char *const end_words[] = {"", "-1", "NoDevFiles", "none", "void"};

	for (size_t i = 0; i < sizeof end_words / sizeof *end_words; i++)
		if (strcmp(entry, end_words[i]) == 0)
			return true;
	return false;
}

static int choose_entry(struct lookup *lookup, const char *entry, struct error *err)
{
	return entry[0] >= '0' && entry[0] <= '9' ? choose_ordinal(lookup, entry, err)
						  : choose_uuid(lookup, entry, err);
}

/* Copy list without backslashes (PBS escapes its commas) and without blanks and quotes around
 * it. */
static char *strip_list(const char *list)
{
	char *text = strdup(list), *to = text;

	for (const char *from = list; text && *from; from++)
		if (!strchr("\\ \t\r\n\"'", *from))
			*to++ = *from;
	if (text)
		*to = '\0';
	return text;
}

int inventory_allow_gpus(struct inventory *inventory, const char *name, const char *list,
			 struct error *err)
{
	struct lookup lookup = {.inventory = inventory, .name = name, .vendor = vendor_of(name)};
	int rc = 0;

	if (!list || strcmp(list, "all") == 0)
		return 0;
	if (strlen(list) > LIST_MAX)
		return error_set(err, ERR_DATA, "%s is longer than %d bytes", name, LIST_MAX);

	/* Slurm and HIP use CUDA's variable for other vendors' GPUs, too. */
	if (!inventory_has_vendor(inventory, lookup.vendor))
		lookup.vendor = 0;

	char *text = strip_list(list);

	lookup.chosen = calloc(inventory->gpu_count + 1, sizeof *lookup.chosen);
	if (!text || !lookup.chosen) {
		rc = error_memory(err, name);
		goto out;
	}
	for (char *rest = text, *entry; !rc && (entry = strsep(&rest, ","));) {
		if (ends_list(entry))
			break;
		rc = choose_entry(&lookup, entry, err);
	}
	for (size_t i = 0; !rc && i < inventory->gpu_count; i++) {
		if (!is_counted(&lookup, i))
			continue;
		inventory->gpus[i].allowed = lookup.chosen[i];
		log_info(LOG_INVENTORY, "GPU %d %s: %s by %s", inventory->gpus[i].index,
			 inventory->gpus[i].pci, lookup.chosen[i] ? "allowed" : "left out", name);
	}
out:
	free(lookup.chosen);
	free(text);
	return rc;
}

const char *inventory_listed_gpus(const struct env *env)
{
	static const char *const lists[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
					    "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"};

	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		const char *list = env_get(env, lists[i]);
		char *text = list ? strip_list(list) : NULL, *rest = text;
		const char *first = text ? strsep(&rest, ",") : "";
		bool named = !ends_list(first) && strcmp(first, "all") != 0;

		free(text);
		if (named)
			return lists[i];
	}
	return NULL;
}

int inventory_allow_visible_devices(struct inventory *inventory, const struct env *env,
				    struct error *err)
{
	static const struct {
		uint16_t vendor;
		const char *name;
	} lists[] = {
		{0x1002, "ROCR_VISIBLE_DEVICES"},
		{0x1002, "HIP_VISIBLE_DEVICES"},
		{0x8086, "ZE_AFFINITY_MASK"},
	};
	const char *listed = inventory_listed_gpus(env);
	bool theirs = false;
	int rc = 0;

	if (listed && !inventory->gpu_count)
		inventory_note(inventory,
			       "%s is %.80s, but no GPU is visible: ranks run without GPUs. On a "
			       "node with GPUs, check that the driver is loaded and that the "
			       "container was started with it",
			       listed, env_get(env, listed));
	if (!inventory->gpu_count)
		return 0;
	for (size_t i = 0; !rc && i < sizeof lists / sizeof *lists; i++) {
		const char *list = env_get(env, lists[i].name);

		if (!list || !inventory_has_vendor(inventory, lists[i].vendor))
			continue;
		theirs = true;
		rc = inventory_allow_gpus(inventory, lists[i].name, list, err);
	}
	if (!rc && (!theirs || inventory_has_vendor(inventory, 0x10de)))
		rc = inventory_allow_gpus(inventory, "CUDA_VISIBLE_DEVICES",
					  env_get(env, "CUDA_VISIBLE_DEVICES"), err);
	return rc;
}
