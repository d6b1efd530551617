/* SPDX-License-Identifier: BSD-3-Clause */
#include "show.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/json.h"

const char *cell(struct cell *out, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(out->text, sizeof out->text, format, ap);
	va_end(ap);
	return out->text;
}

const char *cell_set(struct cell *out, const struct idset *set)
{
	char *text = idset_format(set);

	cell(out, "%s", text ? text : "?");
	free(text);
	return out->text;
}

static const char *cell_gpus(struct cell *out, const struct plan_rank *rank)
{
	out->text[0] = '\0';
	for (size_t i = 0; i < rank->gpu_count; i++)
		text_append(out->text, sizeof out->text, "%s%d %s", i ? ", " : "",
			    rank->gpus[i].index, rank->gpus[i].pci);
	return out->text;
}

static const char *cell_nics(struct cell *out, const struct plan_rank *rank)
{
	out->text[0] = '\0';
	for (size_t i = 0; i < rank->nic_count; i++) {
		const struct plan_nic *nic = &rank->nics[i];

		text_append(out->text, sizeof out->text, "%s%s %s%s", i ? ", " : "",
			    *nic->rdma ? nic->rdma : nic->net, path_class_name(nic->path),
			    nic->state == NIC_STATE_DOWN ? " down" : "");
	}
	return out->text;
}

const char *plural(size_t count)
{
	return count == 1 ? "" : "s";
}

const char *cell_inventory(struct cell *out, const struct inventory *inventory)
{
	return cell(out, "%zu package%s, %zu NUMA node%s, %zu core%s, %zu GPU%s, %zu NIC%s",
		    inventory->package_count, plural(inventory->package_count),
		    inventory->numa_count, plural(inventory->numa_count), inventory->core_count,
		    plural(inventory->core_count), inventory->gpu_count,
		    plural(inventory->gpu_count), inventory->nic_count,
		    plural(inventory->nic_count));
}

void show_section(const struct paint *paint, const char *title, const char *text)
{
	printf("\n%s%s%s\n  ", paint->bold, title, paint->off);
	text_wrap(text, 2, paint->width);
}

void show_alloc(const struct stages *stages)
{
	const struct alloc *alloc = stages->alloc;
	char end[64] = "not known";
	struct tm tm;
	time_t seconds = (time_t)alloc->end_time;
	struct cell heading;

	cell(&heading, "%s: %s", alloc_from_name(alloc->source), alloc->why);
	show_section(&stages->paint, "Allocation", heading.text);
	if (alloc->end_time && localtime_r(&seconds, &tm))
		strftime(end, sizeof end, "%Y-%m-%d %H:%M:%S %z", &tm);
	printf("  job %s", alloc->job_id);
	if (alloc->array_task)
		printf(" (task %s of an array)", alloc->array_task);
	if (alloc->restarts)
		printf(", started %d time%s before", alloc->restarts,
		       plural((size_t)alloc->restarts));
	printf(", %zu node%s, ends: %s", alloc->node_count, plural(alloc->node_count), end);
	if (alloc->end_reason)
		printf(" (%s)", alloc->end_reason);
	putchar('\n');
}

void show_nodes(const struct stages *stages, const int *counts)
{
	struct table table = {0};
	struct cell slots, gpus, ranks;

	TABLE_ROW(&table, "node", "slots", "GPUs granted", counts ? "ranks" : NULL);
	for (size_t i = 0; i < stages->alloc->node_count; i++) {
		const struct alloc_node *node = &stages->alloc->nodes[i];

		TABLE_ROW(&table, node->name, node->slots ? cell(&slots, "%d", node->slots) : "",
			  node->gpus >= 0 ? cell(&gpus, "%d", node->gpus) : "",
			  counts ? cell(&ranks, "%d", counts[i]) : NULL);
	}
	table_print(&table, &stages->paint, 2);
}

/* srun's line has a script of many words. */
void show_launch(const struct stages *stages, bool line)
{
	const char *script;
	struct cell heading;
	bool cut;

	if (!stages->launcher)
		return;
	script = strstr(stages->launcher_line, " sh -c '");
	cut = script && !stages->verbose;
	cell(&heading, "berth run starts one agent per node with %s%s", stages->launcher->name,
	     line ? ":" : "");
	show_section(&stages->paint, "Launch", heading.text);
	if (line)
		printf("  %.*s%s\n", cut ? (int)(script - stages->launcher_line) : INT_MAX,
		       stages->launcher_line, cut ? " sh -c ... berth agent (-v: all of it)" : "");
}

/* Only what follows from the allocation and the options. */
static void show_requested_network(const struct stages *stages)
{
	const struct plan_request *request = &stages->request;
	const char *requested[] = {request->master_addr, request->iface, request->subnet};
	static const char *const by[] = {"--master-addr", "--iface", "--subnet"};
	struct cell text = {0};

	for (size_t i = 0; i < 3; i++)
		if (requested[i])
			text_append(text.text, sizeof text.text, "%s %s, ", by[i], requested[i]);
	text_append(text.text, sizeof text.text, "an address of %s%s", stages->alloc->nodes[0].name,
		    stages->alloc->node_count > 1 ? " that all nodes reach"
						  : ", loopback by default");
	show_section(&stages->paint, "Network", text.text);
}

void show_network(const struct stages *stages)
{
	const struct plan_network *network = &stages->plan.network;
	const struct plan_fabric *fabric = plan_fabric(network->kind);
	char port[48] = "a free port that rank 0's agent reserves", lead[96];
	struct cell text;

	if (!stages->plan.node_count) {
		show_requested_network(stages);
		return;
	}
	show_section(&stages->paint, "Network", network->why ? network->why : "no reason recorded");
	if (stages->plan.port)
		snprintf(port, sizeof port, "%d", stages->plan.port);
	printf("  MASTER_ADDR %s%s%s, MASTER_PORT %s\n", network->address,
	       *network->iface ? " on " : "", network->iface, port);
	if (network->single_node)
		return;
	snprintf(lead, sizeof lead, "  %s: ", fabric->title);
	printf("%s", lead);
	text_wrap(cell(&text, "%s; set: %s (%s)", fabric->driven_by, fabric->settings,
		       fabric->source),
		  (int)strlen(lead), stages->paint.width);
}

void show_plan(const struct stages *stages, size_t node, size_t count, int own)
{
	const struct plan *plan = &stages->plan;
	const struct plan_node *nodes = &plan->nodes[node];
	struct cell heading, cpus;

	cell(&heading, "%d rank%s", plan->world_size, plural((size_t)plan->world_size));
	if (count > 1)
		text_append(heading.text, sizeof heading.text, " on %zu nodes", count);
	else if (plan->node_count > 1)
		text_append(heading.text, sizeof heading.text, ", %zu of them on %s",
			    nodes->rank_count, nodes->node);
	else
		text_append(heading.text, sizeof heading.text, " on %s", nodes->node);
	show_section(&stages->paint, "Plan", heading.text);
	show_ranks(nodes, count, own, &stages->paint);
	for (size_t n = 0; n < count; n++)
		if (idset_count(nodes[n].free_cpus_os))
			printf("  unused%s%s: CPUs %s\n", count > 1 ? " on " : "",
			       count > 1 ? nodes[n].node : "",
			       cell_set(&cpus, nodes[n].free_cpus_os));
}

void show_ranks(const struct plan_node *nodes, size_t count, int own, const struct paint *paint)
{
	struct table table = {0};
	struct cell number, gpus, cpus, numa, threads, nics;

	TABLE_ROW(&table, "rank", "GPU", "CPUs", "NUMA", "threads", "NICs", "why");
	for (size_t n = 0; n < count; n++)
		for (size_t r = 0; r < nodes[n].rank_count; r++) {
			const struct plan_rank *rank = &nodes[n].ranks[r];

			TABLE_ROW(&table,
				  cell(&number, "%d%s%s%s", rank->rank, count > 1 ? " on " : "",
				       count > 1 ? nodes[n].node : "",
				       rank->rank == own ? " (this process)" : ""),
				  cell_gpus(&gpus, rank), cell_set(&cpus, rank->cpus_os),
				  cell_set(&numa, rank->numa_os),
				  cell(&threads, "%d", rank->threads), cell_nics(&nics, rank),
				  rank->why ? rank->why : "");
		}
	table_print(&table, paint, 2);
}

static bool differs(const struct env *other, const struct env_var *var)
{
	const char *value = other ? env_get(other, var->name) : var->value;

	return !value != !var->value || (value && strcmp(value, var->value) != 0);
}

int show_environment(const struct stages *stages, size_t node, size_t local_rank,
		     const struct env *own, struct error *err)
{
	const struct plan_node *at = &stages->plan.nodes[node];
	struct env *made = NULL, *other = NULL;
	const struct env *changes;
	struct table table = {0};
	struct cell name;
	int rc = own ? 0 : stages_environment(stages, node, local_rank, stages->env, &made, err);

	if (!rc && !own && at->rank_count > 1)
		rc = stages_environment(stages, node, !local_rank, stages->env, &other, err);
	cell(&name, "of rank %d%s%s", at->ranks[local_rank].rank, own ? ", this process" : "",
	     other ? "; values marked * differ between the ranks of a node" : "");
	if (!rc)
		show_section(&stages->paint, "Environment", name.text);
	changes = own ? own : made;
	TABLE_ROW(&table, "name", "value", "from", "why");
	for (size_t i = 0; !rc && i < env_count(changes); i++) {
		const struct env_var *var = env_at(changes, i);

		TABLE_ROW(&table, cell(&name, "%s%s", var->name, differs(other, var) ? " *" : ""),
			  var->value			? var->value
			  : var->from == ENV_FROM_START ? "(at the start)"
							: "(removed)",
			  env_from_name(var->from), var->why ? var->why : "");
	}
	table_print(&table, &stages->paint, 2);
	env_free(made);
	env_free(other);
	return rc;
}

void show_warnings(const struct paint *paint, const json_t *warnings)
{
	json_t *warning;
	size_t i;

	if (json_array_size(warnings))
		printf("\n%sWarnings%s\n", paint->bold, paint->off);
	json_array_foreach(warnings, i, warning)
	{
		printf("  %s!%s ", paint->warn, paint->off);
		text_wrap(json_string_value(warning), 4, paint->width);
	}
}

json_t *environment_json(const struct env *changes)
{
	JSON_AUTO out = json_array();

	for (size_t i = 0; out && i < env_count(changes); i++) {
		const struct env_var *var = env_at(changes, i);

		if (json_array_append_new(
			    out, json_pack("{s:o, s:o, s:s, s:o}", "name", json_text(var->name),
					   "value", json_text(var->value), "from",
					   env_from_name(var->from), "why", json_text(var->why))))
			return NULL;
	}
	return json_incref(out);
}
