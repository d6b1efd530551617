/* SPDX-License-Identifier: BSD-3-Clause */
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "hostlist/hostlist.h"
#include "plan/plan_internal.h"

/* ---- GPUs, cores and NICs of each node ---- */

static int idle_node(const struct inventory *inventory, struct plan_node *out, struct error *err)
{
	out->node = strdup(inventory->node ? inventory->node : "");
	out->free_cpus_os = idset_copy(inventory->allowed_cpus_os);
	return out->node && out->free_cpus_os ? 0 : error_memory(err, "a node's plan");
}

static int bind_nodes(const struct alloc *alloc, const struct inventory *inventories, size_t count,
		      const struct plan_request *request, const int *counts, struct plan *plan,
		      struct error *err)
{
	int first_rank = 0, rc = 0;

	for (size_t n = 0; !rc && n < count; n++) {
		struct room room = room_of(&alloc->nodes[n], &inventories[n], request);
		struct plan_request own = *request;

		own.cores_per_rank = room.cores ? room.per_rank : 0;
		if (counts[n])
			rc = plan_map_node(&inventories[n], &own, first_rank, counts[n],
					   &plan->nodes[n], err);
		else
			rc = idle_node(&inventories[n], &plan->nodes[n], err);
		plan->nodes[n].node_rank = counts[n] ? plan->nodes_with_ranks++ : 0;
		first_rank += counts[n];
	}
	plan->world_size = first_rank;
	return rc;
}

/* ---- the network of all nodes ---- */

static void name_interfaces(const struct inventory *inventories, struct plan *plan,
			    struct warnings *warnings)
{
	size_t routed = 0, without = 0, first_routed = 0, first_without = 0;

	if (plan->network.single_node)
		return;
	for (size_t n = 0; n < plan->node_count; n++) {
		int index;

		if (!inventories[n].address_count) /* unknown: not even loopback is listed */
			continue;
		bool inside = network_iface(&inventories[n], &plan->network, &index);

		if (index >= 0)
			memcpy(plan->nodes[n].iface, inventories[n].addresses[index].iface,
			       sizeof plan->nodes[n].iface);
		if (inside)
			continue;
		if (index >= 0 && !routed++)
			first_routed = n;
		if (index < 0 && !without++)
			first_without = n;
	}
	if (routed)
		warn(warnings,
		     "%zu node%s (first: %s) %s no address in %s: using the best interface of the "
		     "same kind instead",
		     routed, routed == 1 ? "" : "s", plan->nodes[first_routed].node,
		     routed == 1 ? "has" : "have", plan->network.subnet);
	if (without && *plan->network.subnet)
		warn(warnings,
		     "%zu node%s (first: %s) %s no interface for %s: NCCL and other libraries will "
		     "choose one themselves",
		     without, without == 1 ? "" : "s", plan->nodes[first_without].node,
		     without == 1 ? "has" : "have", plan->network.subnet);
}

/* If the first node has no rank because other runs use its GPUs, all ranks are on one other node.
 */
static int choose_network(const struct inventory *inventories, const struct plan_request *request,
			  const struct plan_reach *reach, struct plan *plan, struct error *err)
{
	size_t first = 0;

	while (first + 1 < plan->node_count && !plan->nodes[first].rank_count)
		first++;
	return plan_network(inventories + first, first ? 1 : plan->node_count, request,
			    first ? NULL : reach, &plan->network, err);
}

/* Warnings that need a view of all nodes. */
static void warn_plan(const struct inventory *inventories, const struct plan_request *request,
		      const struct plan *plan, struct warnings *warnings)
{
	enum nic_kind first_node_kind, kind;
	size_t nodes = plan->node_count - request->spares;

	if (plan->nodes_with_ranks < nodes && !request->part)
		warn(warnings, "%zu of %zu nodes get no rank: there are fewer ranks than nodes%s",
		     nodes - plan->nodes_with_ranks, nodes,
		     request->spares ? ", not counting spares" : "");
	nic_best_class(&inventories[0], &first_node_kind);
	for (size_t n = 1; n < plan->node_count; n++) {
		nic_best_class(&inventories[n], &kind);
		if (kind == first_node_kind)
			continue;
		warn(warnings,
		     "%s has %s but %s has %s: ranks communicate over a network that both have",
		     plan->nodes[0].node, fabric_title(first_node_kind), plan->nodes[n].node,
		     fabric_title(kind));
		return;
	}
}

bool plan_unseen_gpus(const struct alloc *alloc, const struct inventory *inventories, char *text,
		      size_t size)
{
	size_t n = 0;

	while (n < alloc->node_count && (alloc->nodes[n].gpus <= 0 || inventories[n].gpu_count))
		n++;
	if (n == alloc->node_count)
		return false;
	snprintf(text, size,
		 "%d GPU%s granted on %s, but none is visible there: its ranks run without GPUs. "
		 "Check that the driver is loaded (nvidia-smi, dmesg).",
		 alloc->nodes[n].gpus, alloc->nodes[n].gpus == 1 ? "" : "s", alloc->nodes[n].name);
	return true;
}

/* sbatch -n 4 on nodes with fewer cores: a core runs one rank unless the user says otherwise. */
static void warn_fewer_ranks(const struct alloc *alloc, const struct inventory *inventories,
			     const struct plan_request *request, int ranks,
			     struct warnings *warnings)
{
	size_t small = alloc->node_count;
	long slots = 0;

	if (request->ranks || request->ranks_per_node || request->per_node || request->spares)
		return;
	for (size_t n = alloc->node_count; n-- > 0; slots += alloc->nodes[n].slots)
		if (!usable_gpus(&inventories[n]) && inventories[n].core_count &&
		    alloc->nodes[n].slots > (int)inventories[n].core_count)
			small = n;
	if (small < alloc->node_count && ranks < slots)
		warn(warnings,
		     "%d ranks, although the scheduler granted %ld tasks: %s has %zu cores for %d "
		     "tasks. -n %ld starts as many ranks as tasks",
		     ranks, slots, alloc->nodes[small].name, inventories[small].core_count,
		     alloc->nodes[small].slots, slots);
}

/* Schedulers grant GPUs without the cores that feed them unless the job requests those. */
static void warn_few_cores(const struct alloc *alloc, const struct inventory *inventories,
			   const struct plan_request *request, const struct plan *plan,
			   struct warnings *warnings)
{
	bool pbs = alloc->source == ALLOC_FROM_PBS;
	char line[80];

	if (!pbs && alloc->source != ALLOC_FROM_SLURM)
		return;
	for (size_t n = 0; n < plan->node_count; n++) {
		const struct inventory *inventory = &inventories[n];
		const struct plan_node *node = &plan->nodes[n];
		size_t gpus = node->rank_count ? node->ranks[0].gpu_count : 0;
		/* torchrun starts a worker for each GPU of its rank. */
		size_t workers = request->per_node ? gpus : node->rank_count;
		long share = inventory->gpu_count
				     ? (long)inventory->node_core_count / (long)inventory->gpu_count
				     : 0;

		if (!gpus || inventory->core_count >= 2 * workers || share < 2 ||
		    inventory->node_core_count <= (int64_t)inventory->core_count)
			continue;
		gpus = (size_t)usable_gpus(inventory);
		if (pbs)
			snprintf(line, sizeof line, "-l select=%zu:ncpus=%ld:ngpus=%zu",
				 plan->node_count, share * (long)gpus, gpus);
		else
			snprintf(line, sizeof line, "#SBATCH --cpus-per-gpu=%ld", share);
		warn(warnings,
		     "the job has %zu core%s on %s for %zu processes with GPUs, although the node "
		     "has %lld: data loaders will be slow. Request more cores with %s",
		     inventory->core_count, inventory->core_count == 1 ? "" : "s", node->node,
		     workers, (long long)inventory->node_core_count, line);
		return;
	}
}

/* PBS's cgroups hook sets an empty list if no GPU was requested: say what to request. */
static void warn_no_gpus(const struct alloc *alloc, const struct inventory *inventories,
			 const struct env *env, struct warnings *warnings)
{
	const char *list = env ? env_get(env, "CUDA_VISIBLE_DEVICES") : NULL;
	const char *ncpus = env ? env_get(env, "NCPUS") : NULL;
	bool cpus = ncpus && strspn(ncpus, "0123456789") == strlen(ncpus) && atoi(ncpus) > 0;

	if (!list || list[strspn(list, "\\ \"'")] || !inventories[0].gpu_count ||
	    alloc->source != ALLOC_FROM_PBS)
		return;
	warn(warnings,
	     "CUDA_VISIBLE_DEVICES is empty: PBS granted no GPU, although %s has %zu. Request GPUs "
	     "with -l select=%zu%s%s:ngpus=%zu:mpiprocs=%zu",
	     inventories[0].node ? inventories[0].node : "this node", inventories[0].gpu_count,
	     alloc->node_count, cpus ? ":ncpus=" : "", cpus ? ncpus : "", inventories[0].gpu_count,
	     inventories[0].gpu_count);
}

/* "2(x3),1" */
static char *tasks_list(const int *counts, size_t count)
{
	struct words words = {0};

	for (size_t i = 0, same; i < count; i += same) {
		for (same = 1; i + same < count && counts[i + same] == counts[i]; same++)
			;
		words_add(&words, same > 1 ? "%d(x%zu)" : "%d", counts[i], same);
	}
	return words_join(&words, ',');
}

/* Make the lists once for all ranks, since each rank gets them. */
static int list_nodes(const struct alloc *alloc, struct plan *plan, struct scratch *scratch,
		      struct error *err)
{
	const char **names = scratch_array(scratch, plan->node_count, sizeof *names);
	int *counts = scratch_array(scratch, plan->node_count, sizeof *counts);
	size_t used = 0;

	for (size_t i = 0; !scratch->failed && i < plan->node_count; i++) {
		if (!plan->nodes[i].rank_count)
			continue;
		names[used] = alloc->nodes[i].name;
		counts[used++] = (int)plan->nodes[i].rank_count;
	}
	if (!scratch->failed) {
		plan->node_list = hostlist_compress(names, used);
		plan->tasks_list = tasks_list(counts, used);
	}
	return plan->node_list && plan->tasks_list ? 0 : error_memory(err, "the plan");
}

static void log_plan(const struct plan *plan)
{
	log_info(LOG_PLAN, "%d ranks on %zu nodes meet at %s port %d: %s", plan->world_size,
		 plan->node_count, plan->network.address, plan->port,
		 plan->network.why ? plan->network.why : "one node");
	for (size_t n = 0; n < plan->node_count; n++)
		for (size_t i = 0; i < plan->nodes[n].rank_count; i++) {
			const struct plan_rank *rank = &plan->nodes[n].ranks[i];
			char *cpus = idset_format(rank->cpus_os);

			log_info(LOG_PLAN, "%s: rank %d, CPUs %s, %zu GPUs from %s, %zu NICs: %s",
				 plan->nodes[n].node, rank->rank, cpus ? cpus : "?",
				 rank->gpu_count, rank->gpu_count ? rank->gpus[0].pci : "none",
				 rank->nic_count, rank->why ? rank->why : "");
			free(cpus);
		}
}

/* accelerate's configuration for 4 processes in a job with 8 ranks: half of the GPUs would idle, or
 * the batch size would be another one. */
static int check_sizes(const struct plan *plan, const struct plan_sizes *sizes, struct error *err)
{
	int nodes = (int)plan->nodes_with_ranks, ranks = sizes->ranks_per_node * nodes;
	char wanted[100], fix[100];

	ranks = sizes->ranks > 0 ? sizes->ranks : ranks;
	if ((ranks <= 0 || ranks == plan->world_size) &&
	    (sizes->nodes <= 0 || sizes->nodes == nodes))
		return 0;
	if (sizes->ranks_per_node > 0)
		snprintf(wanted, sizeof wanted, "%d ranks per node", sizes->ranks_per_node);
	else
		snprintf(wanted, sizeof wanted, "%d ranks", ranks > 0 ? ranks : plan->world_size);
	if (sizes->nodes > 0)
		text_append(wanted, sizeof wanted, " on %d node%s", sizes->nodes,
			    sizes->nodes == 1 ? "" : "s");
	if (sizes->ranks_per_node > 0)
		snprintf(fix, sizeof fix, "--num_gpus and --num_nodes");
	else
		snprintf(fix, sizeof fix, "it, or add --num_processes %d --num_machines %d",
			 plan->world_size, nodes);
	return error_set(err, ERR_USAGE,
			 "%s asks for %s, but this job has %d on %d node%s: correct %s, or change "
			 "berth run's -n",
			 sizes->source, wanted, plan->world_size, nodes, nodes == 1 ? "" : "s",
			 fix);
}

int plan_make(const struct alloc *alloc, const struct inventory *inventories, size_t count,
	      const struct plan_request *request, const struct plan_reach *reach,
	      const struct env *env, struct plan *out, struct error *err)
{
	struct plan plan = {.node_count = count,
			    .attempt = request->attempt,
			    .port = request->port,
			    .end_time = alloc->end_time};
	struct warnings warnings = {
		.list = &plan.warnings, .count = &plan.warning_count, .err = err};
	struct scratch scratch = {0};
	char unseen[400];
	int *counts = scratch_array(&scratch, count, sizeof *counts), rc = 0;

	plan.nodes = calloc(count + 1, sizeof *plan.nodes);
	plan.job_id = strdup(alloc->job_id ? alloc->job_id : "");
	if (!counts || !plan.nodes || !plan.job_id) {
		plan.node_count = plan.nodes ? count : 0;
		rc = error_memory(err, "the plan");
	}
	if (!rc)
		rc = plan_rank_counts(alloc, inventories, count, request, counts, err);
	if (!rc)
		rc = bind_nodes(alloc, inventories, count, request, counts, &plan, err);
	if (!rc && request->sizes)
		rc = check_sizes(&plan, request->sizes, err);
	if (!rc)
		rc = choose_network(inventories, request, reach, &plan, err);
	if (!rc) {
		if (plan.network.warning)
			warn(&warnings, "%s", plan.network.warning);
		name_interfaces(inventories, &plan, &warnings);
		warn_plan(inventories, request, &plan, &warnings);
		warn_no_gpus(alloc, inventories, env, &warnings);
		if (plan_unseen_gpus(alloc, inventories, unseen, sizeof unseen))
			warn(&warnings, "%s", unseen);
		warn_fewer_ranks(alloc, inventories, request, plan.world_size, &warnings);
		warn_few_cores(alloc, inventories, request, &plan, &warnings);
		rc = warnings.rc;
	}
	if (!rc && alloc->source == ALLOC_FROM_SLURM)
		rc = list_nodes(alloc, &plan, &scratch, err);
	scratch_free(&scratch);
	if (rc) {
		plan_free(&plan);
		return rc;
	}
	if (log_details[LOG_PLAN])
		log_plan(&plan);
	*out = plan;
	return 0;
}

void plan_free(struct plan *plan)
{
	if (!plan)
		return;
	for (size_t n = 0; n < plan->node_count; n++)
		plan_node_free(&plan->nodes[n]);
	free(plan->nodes);
	free(plan->job_id);
	free(plan->node_list);
	free(plan->tasks_list);
	plan_network_free(&plan->network);
	text_list_free(plan->warnings, plan->warning_count);
	memset(plan, 0, sizeof *plan);
}
