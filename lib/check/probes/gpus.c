/* SPDX-License-Identifier: BSD-3-Clause */
/* GPUs that report errors or that other programs hold, according to NVML. Faults come from the
 * node's inventory. */
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/nvml.h"
#include "check/check_internal.h"

/* "pid 812 (python, user ada)"; a process of another container appears as a bare number. */
static json_t *process_text(const struct nvml_process *process)
{
	char path[64], name[64], user[64] = "", memory[48] = "";
	struct stat info;
	struct passwd entry, *found = NULL;
	char block[1024];

	snprintf(path, sizeof path, "/proc/%u/comm", process->pid);
	if (!stat(path, &info) && !getpwuid_r(info.st_uid, &entry, block, sizeof block, &found) &&
	    found)
		snprintf(user, sizeof user, ", user %.40s", entry.pw_name);
	file_read_line(path, name, sizeof name);
	if (process->memory_bytes != NVML_MEMORY_UNKNOWN)
		snprintf(memory, sizeof memory, ", %llu MiB", process->memory_bytes >> 20);

	json_t *text = json_sprintf("pid %u%s%.40s%s%s%s", process->pid, *name ? " (" : "", name,
				    user, *name ? ")" : "", memory);

	return text ? text : json_sprintf("pid %u", process->pid);
}

static json_t *processes(const struct nvml *nvml, struct nvml_device *device)
{
	struct nvml_process list[NVML_PROCESSES_MAX];
	unsigned count = NVML_PROCESSES_MAX;
	json_t *out = json_array();
	int result = nvml->processes ? nvml->processes(device, &count, list) : -1;

	if (result == NVML_INSUFFICIENT_SIZE)
		json_array_append_new(out, json_sprintf("%u processes", count));
	for (unsigned i = 0; result == NVML_SUCCESS && i < count && i < NVML_PROCESSES_MAX; i++)
		json_array_append_new(out, process_text(&list[i]));
	return out;
}

static json_t *inspect_gpu(const struct nvml *nvml, unsigned index)
{
	struct nvml_pci pci = {0};
	struct nvml_device *device;
	unsigned long long errors = 0;
	unsigned corrected, uncorrected, pending = 0, failed = 0;

	if (nvml->by_index(index, &device) || nvml->pci_info(device, &pci))
		return NULL;
	pci.bus_id[sizeof pci.bus_id - 1] = '\0';
	if (!nvml->ecc_errors ||
	    nvml->ecc_errors(device, NVML_ECC_UNCORRECTED, NVML_ECC_VOLATILE, &errors))
		errors = 0;
	if (!nvml->remapped_rows ||
	    nvml->remapped_rows(device, &corrected, &uncorrected, &pending, &failed))
		pending = 0;
	return json_pack("{s:o, s:o, s:I, s:b}", "pci", json_text(pci.bus_id), "processes",
			 processes(nvml, device), "ecc", (json_int_t)errors, "pending",
			 pending != 0);
}

static json_t *collect(const struct prober *prober)
{
	struct nvml nvml;
	const char *listed = inventory_listed_gpus(prober->env);
	json_t *list = json_array();
	unsigned count = 0;

	if (!nvml_open(NULL, &nvml, NULL)) {
		if (nvml.count(&count))
			count = 0;
		for (unsigned i = 0; i < count; i++) {
			json_t *gpu = inspect_gpu(&nvml, i);

			if (gpu)
				json_array_append_new(list, gpu);
		}
		nvml_close(&nvml);
	}
	return json_pack("{s:o, s:s}", "gpus", list, "listed", listed ? listed : "");
}

/* ---- in the controller ---- */

/* NVML writes the domain with eight digits, hwloc with four. */
static bool same_pci(const char *a, const char *b)
{
	unsigned domain[2], bus[2], device[2];

	return sscanf(a, "%x:%x:%x", &domain[0], &bus[0], &device[0]) == 3 &&
	       sscanf(b, "%x:%x:%x", &domain[1], &bus[1], &device[1]) == 3 &&
	       domain[0] == domain[1] && bus[0] == bus[1] && device[0] == device[1];
}

static const json_t *of_gpu(const json_t *answer, const char *pci)
{
	const json_t *list = json_object_get(answer, "gpus");
	json_t *gpu;
	size_t i;

	json_array_foreach(list, i, gpu) if (same_pci(check_text(gpu, "pci"), pci)) return gpu;
	return NULL;
}

/* Judge one GPU of a node's inventory. Return true if it has a fault. */
static bool judge_gpu(struct check *check, size_t node, const struct inventory_gpu *gpu,
		      const json_t *seen)
{
	const json_t *list = json_object_get(seen, "processes");
	int64_t errors = 0;

	json_get_int("gpus", seen, "ecc", 0, INT64_MAX, &errors, NULL);
	if (gpu->fault)
		check_add(check, node, "gpus", CHECK_FAULT, "exclude the node until it is fixed",
			  "GPU %d (%s): %s", gpu->index, gpu->pci, gpu->fault);
	else if (json_array_size(list))
		check_add(check, node, "gpus", CHECK_FAULT,
			  "end the process if it is yours (a forgotten job); otherwise tell an "
			  "administrator that the scheduler granted you a GPU in use",
			  "GPU %d (%s) is in use by %s%s", gpu->index, gpu->pci,
			  json_string_value(json_array_get(list, 0)),
			  json_array_size(list) > 1 ? " and others" : "");
	else if (errors > 0)
		check_add(
			check, node, "gpus", CHECK_FAULT,
			"ask an administrator to reset it (nvidia-smi --gpu-reset); exclude the "
			"node until then",
			"GPU %d (%s): uncorrected memory errors since the driver was loaded: %lld",
			gpu->index, gpu->pci, (long long)errors);
	else if (json_is_true(json_object_get(seen, "pending")))
		check_add(check, node, "gpus", CHECK_NOTE,
			  "ask an administrator to reset it (nvidia-smi --gpu-reset)",
			  "GPU %d (%s): row remapping is pending until the next reset", gpu->index,
			  gpu->pci);
	else
		return false;
	return true;
}

static size_t most_gpus(const struct check *check)
{
	size_t most = 0;

	for (size_t i = 0; i < check->count; i++)
		if (check->inventories[i].gpu_count > most)
			most = check->inventories[i].gpu_count;
	return most;
}

static void judge(struct check *check)
{
	size_t most = most_gpus(check);

	for (size_t i = 0; i < check->count; i++) {
		const struct inventory *inventory = &check->inventories[i];
		const json_t *answer = check_answer(check, i, "gpus");
		size_t allowed = 0;
		bool reported = false;

		if (check->nodes[i].missing)
			continue;
		for (size_t g = 0; g < inventory->gpu_count; g++) {
			if (!inventory->gpus[g].allowed)
				continue;
			allowed++;
			reported |= judge_gpu(check, i, &inventory->gpus[g],
					      of_gpu(answer, inventory->gpus[g].pci));
		}
		if (inventory->gpu_count < most)
			check_add(check, i, "gpus", CHECK_NOTE,
				  "if the nodes should be identical, a GPU has fallen off the bus: "
				  "look for Xid in dmesg",
				  "GPUs: %zu here, %zu on another node", inventory->gpu_count,
				  most);
		else if (!reported && inventory->gpu_count && !answer)
			check_add(check, i, "gpus", CHECK_FAULT,
				  "run nvidia-smi on that node: the driver may hang",
				  "the driver did not answer in time");
		else if (!reported && inventory->gpu_count)
			check_add(check, i, "gpus", CHECK_OK, NULL,
				  "%zu of %zu are granted to this job: not in use, no errors",
				  allowed, inventory->gpu_count);
		else if (!reported && check->request->launch->alloc->nodes[i].gpus > 0)
			check_add(check, i, "gpus", CHECK_FAULT,
				  "run nvidia-smi and dmesg on that node: the driver may not be "
				  "loaded",
				  "GPUs granted here: %d, but none is visible",
				  check->request->launch->alloc->nodes[i].gpus);
		else if (!reported && *check_text(answer, "listed"))
			check_add(
				check, i, "gpus", CHECK_FAULT,
				"check the driver (nvidia-smi) and how the container was started; "
				"unset the variable on a node without GPUs",
				"%s lists GPUs, but none is visible", check_text(answer, "listed"));
		else if (!reported)
			check_add(check, i, "gpus", CHECK_SKIPPED, NULL, "no GPU on this node");
	}
}

const struct check_probe probe_gpus = {"gpus", .collect = collect, .judge = judge};
