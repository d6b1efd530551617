/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists of visible devices: what a scheduler lets this job use. */
#include "inventory/inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"

#define LIST_MAX 65536

/* Whose ordinals a variable counts; 0: any GPU's (GPU_DEVICE_ORDINAL). */
static uint16_t vendor_of(const char *name)
{
	if (strncmp(name, "CUDA_", 5) == 0 || strncmp(name, "NVIDIA_", 7) == 0)
		return 0x10de;
	if (strncmp(name, "ROCR_", 5) == 0 || strncmp(name, "HIP_", 4) == 0)
		return 0x1002;
	return strncmp(name, "ZE_", 3) == 0 ? 0x8086 : 0;
}

struct lookup {
	struct machine *machine;
	const char *name;
	uint16_t vendor; /* 0: all count */
	bool *chosen;	 /* gpu_count of them */
	size_t chosen_count;
};

/* Does the list speak of this GPU, and may the job see it at all (cgroup)? */
static bool counts(const struct lookup *look, size_t i)
{
	const struct machine_gpu *gpu = &look->machine->gpus[i];

	return gpu->allowed && (!look->vendor || gpu->vendor == look->vendor);
}

static int choose(struct lookup *look, size_t i, const char *entry, struct error *err)
{
	if (look->chosen[i])
		return error_set(err, ERR_DATA,
				 "%s names GPU %s twice, the second time as \"%s\"; expected each "
				 "GPU once",
				 look->name, look->machine->gpus[i].pci, entry);
	look->chosen[i] = true;
	look->chosen_count++;
	return 0;
}

static int choose_ordinal(struct lookup *look, const char *entry, struct error *err)
{
	size_t count = 0;
	int ordinal = -1;
	char digits[16];

	/* Level Zero's "0.1" is a tile of device 0; berth hands out whole devices. */
	snprintf(digits, sizeof digits, "%.*s",
		 (int)(look->vendor == 0x8086 ? strcspn(entry, ".") : strlen(entry)), entry);
	if (strlen(entry) >= sizeof digits ||
	    number_int("ordinal", digits, 0, 65535, &ordinal, NULL) != 0)
		ordinal = -1;
	for (size_t i = 0; i < look->machine->gpu_count; i++) {
		if (!counts(look, i))
			continue;
		if (ordinal >= 0 && count == (size_t)ordinal)
			return look->vendor == 0x8086 && look->chosen[i]
				       ? 0
				       : choose(look, i, entry, err);
		count++;
	}
	return error_set(
		err, ERR_DATA,
		"%s has \"%s\", which no GPU here is; expected ordinals below %zu, UUIDs or "
		"their prefixes",
		look->name, entry, count);
}

static bool same_function(const struct machine_gpu *a, const struct machine_gpu *b)
{
	return strcmp(a->pci, b->pci) == 0;
}

/* Does a UUID's beginning name this GPU: itself, a MIG device in its older name, or the GPU
 * that a MIG device is on? */
static bool named_by(const struct machine_gpu *gpu, const char *entry)
{
	size_t length = strlen(entry);

	return (gpu->uuid && strncmp(gpu->uuid, entry, length) == 0) ||
	       (gpu->mig &&
		(strcmp(gpu->mig, entry) == 0 ||
		 (strncmp(entry, "GPU-", 4) == 0 && strncmp(gpu->mig + 4, entry, length) == 0)));
}

static int choose_uuid(struct lookup *look, const char *entry, struct error *err)
{
	const struct machine_gpu *first = NULL;
	bool any_uuid = false;

	for (size_t i = 0; i < look->machine->gpu_count; i++) {
		const struct machine_gpu *gpu = &look->machine->gpus[i];

		any_uuid = any_uuid || gpu->uuid;
		if (!counts(look, i) || !named_by(gpu, entry))
			continue;
		/* A GPU's own UUID means all its MIG devices; else one device is meant. */
		if (first && !(strncmp(entry, "GPU-", 4) == 0 && same_function(first, gpu)))
			return error_set(err, ERR_DATA,
					 "%s has \"%s\", which is the beginning of more than one "
					 "GPU's UUID; expected enough of it to tell them apart",
					 look->name, entry);
		first = gpu;
	}
	if (!first)
		return error_set(err, ERR_DATA,
				 "%s has \"%s\", which no GPU here has as its UUID%s", look->name,
				 entry,
				 any_uuid ? "; are these devices of another node?"
					  : ": UUIDs are unknown here (no NVML)");
	for (size_t i = 0; i < look->machine->gpu_count; i++)
		if (counts(look, i) && named_by(&look->machine->gpus[i], entry)) {
			int rc = choose(look, i, entry, err);

			if (rc)
				return rc;
		}
	return 0;
}

static bool ends_list(const char *entry)
{
	static const char *const words[] = {"", "-1", "NoDevFiles", "none", "void"};

	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strcmp(entry, words[i]) == 0)
			return true;
	return false;
}

static int choose_entry(struct lookup *look, const char *entry, struct error *err)
{
	return entry[0] >= '0' && entry[0] <= '9' ? choose_ordinal(look, entry, err)
						  : choose_uuid(look, entry, err);
}

/* list less backslashes (PBS escapes its commas), blanks and quotes around it. */
static char *clean(const char *list)
{
	char *text = strdup(list), *to = text;

	for (const char *from = list; text && *from; from++)
		if (!strchr("\\ \t\r\n\"'", *from))
			*to++ = *from;
	if (text)
		*to = '\0';
	return text;
}

int machine_allow_gpus(struct machine *machine, const char *name, const char *list,
		       struct error *err)
{
	struct lookup look = {.machine = machine, .name = name, .vendor = vendor_of(name)};
	int rc = 0;

	if (!list || strcmp(list, "all") == 0)
		return 0;
	if (strlen(list) > LIST_MAX)
		return error_set(err, ERR_DATA, "%s is longer than %d bytes", name, LIST_MAX);

	/* Slurm and HIP use CUDA's variable for other vendors' GPUs too. */
	bool own = false;

	for (size_t i = 0; i < machine->gpu_count; i++)
		own = own || machine->gpus[i].vendor == look.vendor;
	if (!own)
		look.vendor = 0;

	char *text = clean(list);

	look.chosen = calloc(machine->gpu_count + 1, sizeof *look.chosen);
	if (!text || !look.chosen) {
		rc = error_memory(err, name);
		goto out;
	}
	for (char *rest = text, *entry; !rc && (entry = strsep(&rest, ","));) {
		if (ends_list(entry))
			break;
		rc = choose_entry(&look, entry, err);
	}
	for (size_t i = 0; !rc && i < machine->gpu_count; i++)
		if (counts(&look, i))
			machine->gpus[i].allowed = look.chosen[i];
out:
	free(look.chosen);
	free(text);
	return rc;
}

static bool has_vendor(const struct machine *machine, uint16_t vendor)
{
	for (size_t i = 0; i < machine->gpu_count; i++)
		if (machine->gpus[i].vendor == vendor)
			return true;
	return false;
}

int machine_allow_visible(struct machine *machine, const struct env *env, struct error *err)
{
	static const struct {
		uint16_t vendor;
		const char *name;
	} lists[] = {
		{0x1002, "ROCR_VISIBLE_DEVICES"},
		{0x1002, "HIP_VISIBLE_DEVICES"},
		{0x8086, "ZE_AFFINITY_MASK"},
	};
	bool theirs = false;
	int rc = 0;

	for (size_t i = 0; !rc && i < sizeof lists / sizeof *lists; i++) {
		const char *list = env_get(env, lists[i].name);

		if (!list || !has_vendor(machine, lists[i].vendor))
			continue;
		theirs = true;
		rc = machine_allow_gpus(machine, lists[i].name, list, err);
	}
	if (!rc && (!theirs || has_vendor(machine, 0x10de)))
		rc = machine_allow_gpus(machine, "CUDA_VISIBLE_DEVICES",
					env_get(env, "CUDA_VISIBLE_DEVICES"), err);
	return rc;
}

const char *machine_topology_file(const struct env *env)
{
	const char *file = env_get(env, "BERTH_TOPOLOGY");

	return file && *file ? file : NULL;
}

int machine_load_here(const struct machine_source *source, const struct env *env,
		      struct machine *out, struct error *err)
{
	struct machine_source here = *source;
	int rc;

	if (!here.topology_file)
		here.topology_file = machine_topology_file(env);
	rc = machine_load(&here, out, err);
	if (rc)
		return here.topology_file && !source->topology_file
			       ? error_prefix(err, "BERTH_TOPOLOGY")
			       : rc;
	rc = out->this_system ? machine_allow_visible(out, env, err) : 0;
	if (rc)
		machine_free(out);
	return rc;
}
