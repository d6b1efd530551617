/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan_internal.h"

/* ---- which GPUs ---- */

const struct plan_gpu_vendor *plan_gpu_vendor(const struct inventory *inventory)
{
	static const struct plan_gpu_vendor vendors[] = {
		{0x10de, "CUDA_VISIBLE_DEVICES", "cuda"},
		{0x1002, "ROCR_VISIBLE_DEVICES", "cuda"}, /* PyTorch's name for HIP's, too */
		{0x8086, "ZE_AFFINITY_MASK", "xpu"},
	};

	for (size_t v = 0; v < sizeof vendors / sizeof *vendors; v++)
		for (size_t g = 0; g < inventory->gpu_count; g++)
			if (inventory->gpus[g].vendor == vendors[v].id)
				return &vendors[v];
	return &vendors[0];
}

static bool is_listed(const struct inventory *inventory, size_t gpu)
{
	return inventory->gpus[gpu].vendor == plan_gpu_vendor(inventory)->id;
}

static bool package_known(const struct inventory *inventory, size_t gpu)
{
	const struct inventory_gpu *me = &inventory->gpus[gpu];

	return me->local_known && me->package >= 0 && me->package < (int)inventory->package_count;
}

/* Assign each GPU to a package. If its locality is unknown, its position among such GPUs decides:
 * the first half of the node's GPUs belong to package 0, and so on. That is how such machines are
 * wired; on others it still spreads the ranks. Packages without an allowed core are left out. */
static void gpu_packages(const struct inventory *inventory, int *package)
{
	size_t unknown_count = 0, unknown = 0, with_cores = 0;
	bool has_cores[256] = {false};
	int kept[256];

	for (size_t c = 0; c < inventory->core_count; c++)
		if (inventory->cores[c].package >= 0 && inventory->cores[c].package < 256)
			has_cores[inventory->cores[c].package] = true;
	for (int p = 0; p < 256; p++)
		if (has_cores[p])
			kept[with_cores++] = p;
	for (size_t g = 0; g < inventory->gpu_count; g++)
		unknown_count += !package_known(inventory, g);
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		package[g] = inventory->gpus[g].package;
		if (package_known(inventory, g))
			continue;
		package[g] = with_cores ? kept[unknown++ * with_cores / unknown_count] : -1;
	}
}

static bool same_numas(const struct inventory *inventory, int a, int b)
{
	return idset_equal(inventory->gpus[a].numa_os, inventory->gpus[b].numa_os);
}

/* Do two GPUs have the same nearest NICs? */
static bool same_nics(const struct inventory *inventory, int a, int b)
{
	const uint8_t *pa = inventory->path + (size_t)a * inventory->nic_count;
	const uint8_t *pb = inventory->path + (size_t)b * inventory->nic_count;
	int best_a = PATH_UNKNOWN, best_b = PATH_UNKNOWN;

	if (!inventory->path)
		return true;
	for (size_t n = 0; n < inventory->nic_count; n++) {
		if (!nic_class(inventory, n))
			continue;
		best_a = pa[n] < best_a ? pa[n] : best_a;
		best_b = pb[n] < best_b ? pb[n] : best_b;
	}
	for (size_t n = 0; n < inventory->nic_count; n++)
		if (nic_class(inventory, n) && (pa[n] == best_a) != (pb[n] == best_b))
			return false;
	return true;
}

/* Fewer ranks than GPUs: pick units of per_rank GPUs, given by their first member, one by one. Each
 * pick takes a unit from the package, then the NUMA node, then the NICs with the fewest picks so
 * far. */
static void pick_spread(const struct inventory *inventory, const int *package, const int *first,
			size_t unit_count, bool *picked, int want)
{
	for (int k = 0; k < want && (size_t)k < unit_count; k++) {
		size_t best = unit_count;
		long best_cost = 0;

		for (size_t u = 0; u < unit_count; u++) {
			long in_package = 0, in_numa = 0, on_nics = 0;

			if (picked[u])
				continue;
			for (size_t v = 0; v < unit_count; v++) {
				if (!picked[v])
					continue;
				in_package += package[first[u]] == package[first[v]];
				in_numa += same_numas(inventory, first[u], first[v]);
				on_nics += same_nics(inventory, first[u], first[v]);
			}
			for (int g = 0; g < (int)inventory->gpu_count; g++) {
				if (!gpu_claimed(&inventory->gpus[g]))
					continue;
				in_package += package[first[u]] == package[g];
				in_numa += same_numas(inventory, first[u], g);
				on_nics += same_nics(inventory, first[u], g);
			}

			long cost = (in_package * 1024 + in_numa) * 1024 + on_nics;

			if (best == unit_count || cost < best_cost) {
				best = u;
				best_cost = cost;
			}
		}
		picked[best] = true;
	}
}

static int compare_ints(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Make units of per_rank GPUs: neighbours in PCI order within a package. What is left over in the
 * packages forms the last units. units: [usable_count], unit by unit. */
static size_t make_units(const struct gpu_choice *choice, size_t package_count, int *units)
{
	size_t per_rank = (size_t)choice->per_rank, filled = 0, rest = 0;
	int *left = units + choice->usable_count;

	for (int p = -1; p < (int)package_count; p++) {
		size_t start = filled;

		for (size_t i = 0; i < choice->usable_count; i++)
			if (choice->package[choice->usable[i]] == p)
				units[filled++] = choice->usable[i];

		size_t odd = (filled - start) % per_rank;

		filled -= odd;
		memcpy(left + rest, units + filled, odd * sizeof *units);
		rest += odd;
	}
	qsort(left, rest, sizeof *left, compare_ints);
	memmove(units + filled, left, rest * sizeof *units);
	return choice->usable_count / per_rank;
}

static int compare_units(const void *a, const void *b)
{
	return **(int *const *)a - **(int *const *)b;
}

/* Choose GPUs for ranks that do not share any: all units, or units spread over the node. */
static int choose_own(const struct inventory *inventory, int rank_count, struct scratch *scratch,
		      struct gpu_choice *choice)
{
	size_t usable = choice->usable_count, per_rank = (size_t)choice->per_rank;
	int *units = scratch_array(scratch, 2 * usable, sizeof *units);
	int *first = scratch_array(scratch, usable, sizeof *first);
	int **order = scratch_array(scratch, usable, sizeof *order);
	bool *picked = scratch_array(scratch, usable, sizeof *picked);
	size_t unit_count, kept = 0;

	if (scratch->failed)
		return -1;
	unit_count = make_units(choice, inventory->package_count, units);
	for (size_t u = 0; u < unit_count; u++)
		first[u] = units[u * per_rank];
	if ((size_t)rank_count >= unit_count)
		memset(picked, true, unit_count * sizeof *picked);
	else
		pick_spread(inventory, choice->package, first, unit_count, picked, rank_count);
	for (size_t u = 0; u < unit_count; u++)
		if (picked[u])
			order[kept++] = units + u * per_rank;
	qsort(order, kept, sizeof *order, compare_units);
	for (size_t k = 0; k < kept; k++)
		memcpy(choice->of_rank + k * per_rank, order[k], per_rank * sizeof **order);
	return 0;
}

static int count_usable(const struct inventory *inventory, struct scratch *scratch,
			struct gpu_choice *choice)
{
	choice->usable = scratch_array(scratch, inventory->gpu_count, sizeof *choice->usable);
	choice->package = scratch_array(scratch, inventory->gpu_count, sizeof *choice->package);
	if (scratch->failed)
		return -1;
	gpu_packages(inventory, choice->package);
	for (size_t g = 0; g < inventory->gpu_count && !choice->none; g++)
		if (gpu_usable(&inventory->gpus[g]))
			choice->usable[choice->usable_count++] = (int)g;
	return 0;
}

static int check_request(const struct gpu_choice *choice, const struct plan_request *request,
			 int rank_count, const char *node, struct error *err)
{
	long wanted = (long)request->gpus_per_rank * rank_count;

	if (request->per_node || request->gpus_per_rank <= 0 ||
	    wanted <= (long)choice->usable_count)
		return 0;
	if (request->gpus_per_rank == 1 && choice->usable_count)
		return 0; /* shared, which a warning reports */
	if (!choice->usable_count)
		return error_set(err, ERR_USAGE,
				 "--gpus-per-rank %d: %s has no usable GPU. Omit the option, or "
				 "request GPUs from the scheduler",
				 request->gpus_per_rank, node);
	return error_set(err, ERR_USAGE,
			 "%d rank%s with %d GPU%s per rank: the total is %ld, but %s has %zu "
			 "usable. Lower --gpus-per-rank or the number of ranks.",
			 rank_count, rank_count == 1 ? "" : "s", request->gpus_per_rank,
			 request->gpus_per_rank == 1 ? "" : "s", wanted, node,
			 choice->usable_count);
}

int gpus_choose(const struct inventory *inventory, const struct plan_request *request,
		int rank_count, struct scratch *scratch, struct gpu_choice *out, struct error *err)
{
	struct gpu_choice choice = {.none = request->no_gpus};
	int rc;

	if (count_usable(inventory, scratch, &choice) < 0)
		return error_memory(err, "the choice of GPUs");
	rc = check_request(&choice, request, rank_count,
			   inventory->node ? inventory->node : "the node", err);
	if (rc)
		return rc;
	if (choice.usable_count)
		choice.per_rank = request->per_node	       ? (int)choice.usable_count
				  : request->gpus_per_rank > 0 ? request->gpus_per_rank
							       : 1;
	choice.shared = choice.usable_count && (size_t)rank_count > choice.usable_count;
	choice.own_implied = choice.shared || choice.per_rank > 1;
	if (request->per_node) /* one process for all of the node's workers needs all GPUs */
		choice.own_implied = false;
	choice.own = choice.usable_count && (request->gpus_visible_own || choice.own_implied);
	choice.own_implied = choice.own_implied && !request->gpus_visible_own;
	choice.used_only = request->part;
	choice.of_rank = scratch_array(scratch, (size_t)rank_count * (size_t)choice.per_rank,
				       sizeof *choice.of_rank);
	if (!choice.of_rank)
		return error_memory(err, "the choice of GPUs");
	if (choice.shared) {
		for (int r = 0; r < rank_count; r++)
			choice.of_rank[r] =
				choice.usable[(size_t)r * choice.usable_count / (size_t)rank_count];
	} else if (choice.usable_count && choose_own(inventory, rank_count, scratch, &choice) < 0) {
		return error_memory(err, "the choice of GPUs");
	}
	*out = choice;
	return 0;
}

/* ---- how a list of visible devices names them ---- */

bool gpus_list_name(const struct inventory *inventory, size_t gpu, char *text, size_t size)
{
	const struct inventory_gpu *me = &inventory->gpus[gpu];
	bool nvidia = me->vendor == 0x10de, some_uuid = false;
	bool awkward = nvidia && me->partition >= 0;
	int ordinal = 0;

	if (!is_listed(inventory, gpu))
		return false;
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		const struct inventory_gpu *other = &inventory->gpus[g];

		if (!is_listed(inventory, g))
			continue;
		some_uuid |= other->uuid != NULL;
		/* It is unknown whether CUDA counts a faulty GPU; MIG hides its parent. ROCr does
		 * not count a GPU that the container hides. */
		awkward |= nvidia ? other->fault || other->partition >= 0 : !other->allowed;
	}
	/* NVML shows what the cgroup allows, as CUDA will; the PCI tree shows everything. */
	for (size_t g = 0; g < gpu; g++)
		ordinal += is_listed(inventory, g) &&
			   (!nvidia || !some_uuid || inventory->gpus[g].uuid != NULL);
	if (me->uuid && awkward)
		snprintf(text, size, "%s", me->uuid);
	else
		snprintf(text, size, "%d", ordinal);
	return true;
}
