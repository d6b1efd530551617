/* SPDX-License-Identifier: BSD-3-Clause */
#include "show.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void show_nodes(const struct alloc *alloc, const int *counts, const struct paint *paint)
{
	struct table table = {0};
	struct cell slots, gpus, ranks;

	TABLE_ROW(&table, "node", "slots", "GPUs granted", counts ? "ranks" : NULL);
	for (size_t i = 0; i < alloc->node_count; i++) {
		const struct alloc_node *node = &alloc->nodes[i];

		TABLE_ROW(&table, node->name, node->slots ? cell(&slots, "%d", node->slots) : "",
			  node->gpus >= 0 ? cell(&gpus, "%d", node->gpus) : "",
			  counts ? cell(&ranks, "%d", counts[i]) : NULL);
	}
	table_print(&table, paint, 2);
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

void show_environment(const struct env *changes, const struct env *other, const struct paint *paint)
{
	struct table table = {0};
	struct cell name;

	TABLE_ROW(&table, "name", "value", "from", "why");
	for (size_t i = 0; i < env_count(changes); i++) {
		const struct env_var *var = env_at(changes, i);

		TABLE_ROW(&table, cell(&name, "%s%s", var->name, differs(other, var) ? " *" : ""),
			  var->value			? var->value
			  : var->from == ENV_FROM_START ? "(at the start)"
							: "(removed)",
			  env_from_name(var->from), var->why ? var->why : "");
	}
	table_print(&table, paint, 2);
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
