/* SPDX-License-Identifier: BSD-3-Clause */
#include "info/info.h"

#include <arpa/inet.h>
#include <string.h>

#include "base/bytes.h"
#include "show.h"

static const char *cell_bytes(struct cell *out, int64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double value = (double)bytes;
	size_t unit = 0;

	if (bytes < 0)
		return "";
	for (; value >= 1024 && unit < 5; unit++)
		value /= 1024;
	return cell(out, value < 10 && unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static const char *cell_speed(struct cell *out, int64_t mbps)
{
	return mbps < 0 ? "" : cell(out, "%g Gb/s", (double)mbps / 1000);
}

static const char *state_name(enum nic_state state)
{
	return state == NIC_STATE_UP ? "up" : state == NIC_STATE_DOWN ? "down" : "";
}

static void print_settings(const struct env *env, const struct paint *paint)
{
	struct table table = {0};

	for (size_t i = 0; i < env_count(env); i++) {
		const struct env_var *var = env_at(env, i);

		if (var->from != ENV_FROM_SITE)
			continue;
		if (!table.row_count) {
			show_section(paint, "Settings", "from files of the site and the user");
			TABLE_ROW(&table, "name", "value", "file");
		}
		TABLE_ROW(&table, var->name, var->value, var->why);
	}
	table_print(&table, paint, 2);
}

/* The NICs with the smallest path to a GPU: "mlx5_0, mlx5_1 (PIX)". */
static const char *nearest_nics(struct cell *out, const struct inventory *inventory, size_t gpu)
{
	const uint8_t *path = inventory->path ? inventory->path + gpu * inventory->nic_count : NULL;
	int best = PATH_UNKNOWN + 1;

	for (size_t i = 0; path && i < inventory->nic_count; i++)
		if (!inventory->nics[i].management && path[i] < best)
			best = path[i];
	out->text[0] = '\0';
	for (size_t i = 0; path && i < inventory->nic_count; i++) {
		const struct inventory_nic *nic = &inventory->nics[i];

		if (!nic->management && path[i] == best)
			text_append(out->text, sizeof out->text, "%s%s", *out->text ? ", " : "",
				    *nic->rdma ? nic->rdma : nic->net);
	}
	if (*out->text)
		text_append(out->text, sizeof out->text, " (%s)",
			    path_class_name((enum path_class)best));
	return out->text;
}

static void print_gpus(const struct inventory *inventory, const struct paint *paint)
{
	struct table table = {0};
	struct cell index, numa, cpus, memory, nics;

	TABLE_ROW(&table, "GPU", "PCI", "name", "memory", "NUMA", "CPUs", "nearest NICs", "state");
	for (size_t i = 0; i < inventory->gpu_count; i++) {
		const struct inventory_gpu *gpu = &inventory->gpus[i];

		if (gpu->partition >= 0)
			cell(&index, "%d (part %d)", gpu->index, gpu->partition);
		else
			cell(&index, "%d", gpu->index);
		TABLE_ROW(&table, index.text, gpu->pci, gpu->name ? gpu->name : "",
			  cell_bytes(&memory, gpu->memory_bytes), cell_set(&numa, gpu->numa_os),
			  cell_set(&cpus, gpu->cpus_os), nearest_nics(&nics, inventory, i),
			  gpu->fault	 ? gpu->fault
			  : gpu->allowed ? "usable"
					 : "not in the list of visible devices");
	}
	table_print(&table, paint, 2);
}

static void print_nics(const struct inventory *inventory, const struct paint *paint)
{
	struct table table = {0};
	struct cell name, numa, speed;

	TABLE_ROW(&table, "NIC", "PCI", "kind", "link", "speed", "NUMA", "use");
	for (size_t i = 0; i < inventory->nic_count; i++) {
		const struct inventory_nic *nic = &inventory->nics[i];

		if (*nic->net && *nic->rdma)
			cell(&name, "%s %s:%d", nic->net, nic->rdma, nic->port);
		else if (*nic->rdma)
			cell(&name, "%s:%d", nic->rdma, nic->port);
		else
			cell(&name, "%s", nic->net);
		TABLE_ROW(&table, name.text, nic->pci, nic_kind_name(nic->kind),
			  state_name(nic->state), cell_speed(&speed, nic->speed_mbps),
			  cell_set(&numa, nic->numa_os),
			  nic->management ? "management only" : "data");
	}
	table_print(&table, paint, 2);
}

static void print_addresses(const struct inventory *inventory, const struct paint *paint)
{
	static const char *const sorts[] = {[IFACE_PHYSICAL] = "device",
					    [IFACE_LOOPBACK] = "loopback",
					    [IFACE_VIRTUAL] = "virtual"};
	struct table table = {0};
	struct cell address, speed;

	TABLE_ROW(&table, "interface", "address", "sort", "link", "speed");
	for (size_t i = 0; i < inventory->address_count; i++) {
		const struct inventory_address *entry = &inventory->addresses[i];
		char text[INET6_ADDRSTRLEN];

		inventory_address_format(entry, 0, text, sizeof text);
		TABLE_ROW(&table, entry->iface, cell(&address, "%s/%d", text, entry->prefix),
			  sorts[entry->type], entry->up ? "up" : "down",
			  cell_speed(&speed, entry->speed_mbps));
	}
	table_print(&table, paint, 2);
}

static void print_inventory(const struct inventory *inventory, const struct paint *paint)
{
	struct table table = {0};
	struct cell heading, counts, numa, package, memory, cpus;

	cell(&heading, "%s, from %s: %s; CPUs %s%s", inventory->node, inventory->source,
	     cell_inventory(&counts, inventory), cell_set(&cpus, inventory->allowed_cpus_os),
	     inventory->this_system ? "" : "; from another machine, so ranks cannot be bound");
	show_section(paint, "Inventory", heading.text);
	if (inventory->memory_limit_bytes >= 0)
		printf("  the cgroup allows %s of memory\n",
		       cell_bytes(&memory, inventory->memory_limit_bytes));
	if (inventory->cpu_limit_millis >= 0)
		printf("  the cgroup allows %.3g CPUs of time\n",
		       (double)inventory->cpu_limit_millis / 1000);
	TABLE_ROW(&table, "NUMA", "package", "memory", "CPUs");
	for (size_t i = 0; i < inventory->numa_count; i++) {
		const struct inventory_numa *entry = &inventory->numas[i];

		TABLE_ROW(&table, cell(&numa, "%d", entry->numa_os),
			  cell(&package, "%d", entry->package),
			  cell_bytes(&memory, (int64_t)entry->memory_bytes),
			  cell_set(&cpus, entry->cpus_os));
	}
	table_print(&table, paint, 2);
	print_gpus(inventory, paint);
	print_nics(inventory, paint);
	print_addresses(inventory, paint);
}

static void print_claims(const json_t *claims, const struct paint *paint)
{
	struct table table = {0};
	const json_t *claim;
	size_t i;

	if (!json_array_size(claims))
		return;
	show_section(paint, "Other runs of this job", "what they use on this node");
	TABLE_ROW(&table, "use", "run");
	json_array_foreach(claims, i, claim)
	{
		const char *what = json_string_value(json_object_get(claim, "what"));
		const char *by = json_string_value(json_object_get(claim, "by"));

		TABLE_ROW(&table, what ? what : "nothing yet: it waits", by ? by : "?");
	}
	table_print(&table, paint, 2);
}

/* What this rank knows of the job's programs, from its environment. */
static void print_roles(const struct env *env, const struct paint *paint)
{
	const char *own = env_get(env, "BERTH_ROLE");
	struct table table = {0};
	struct cell name;

	if (!own)
		return;
	show_section(paint, "Roles", cell(&name, "this process is of role %s", own));
	TABLE_ROW(&table, "variable", "value");
	for (size_t i = 0; i < env_count(env); i++)
		if (!strncmp(env_at(env, i)->name, "BERTH_ROLE_", 11) && env_at(env, i)->value &&
		    strcmp(env_at(env, i)->name, "BERTH_ROLE_SECRET") != 0)
			TABLE_ROW(&table, env_at(env, i)->name, env_at(env, i)->value);
	table_print(&table, paint, 2);
}

/* Where this is, how large, on which network and what is wrong: a line each, up to the first
 * semicolon. The sections have the rest. */
static void print_answers(const struct info *info)
{
	const struct alloc *alloc = &info->alloc;
	const struct plan *plan = &info->stages.plan;
	const json_t *warnings = info->stages.warnings;
	size_t nodes = info->plan_file ? plan->node_count : alloc->node_count;
	size_t count = json_array_size(warnings);
	const char *why = plan->network.why ? plan->network.why : "not known here";
	const char *wrong = json_string_value(json_array_get(warnings, 0));

	printf("  where     %s, job %s\n", alloc_from_name(alloc->source), alloc->job_id);
	printf("  size      %zu node%s", nodes, plural(nodes));
	if (!info->outside)
		printf(", %d rank%s; GPUs here: %zu", plan->world_size,
		       plural((size_t)plan->world_size), info->stages.inventory.gpu_count);
	printf("\n  network   %.*s\n", (int)strcspn(why, ";"), why);
	printf("  warnings  %zu%s%.*s\n", count, wrong ? ": " : "",
	       wrong ? (int)strcspn(wrong, ";") : 0, wrong ? wrong : "");
}

int info_print(const struct info *info, struct error *err)
{
	const struct stages *stages = &info->stages;
	bool own = info->plan_file && info->local_rank == (size_t)info->own_local_rank;
	const struct paint *paint = &stages->paint;
	int rc = 0;

	printf("%sberth " BERTH_VERSION "%s on %s\n", paint->bold, paint->off,
	       stages->inventory.node);
	print_answers(info);
	show_alloc(stages);
	show_nodes(stages, NULL);
	show_launch(stages, stages->verbose);
	print_settings(stages->env, paint);
	print_claims(info->claims, paint);
	if (info->outside) {
		show_section(paint, "Not known here", stages->not_known);
	} else {
		print_inventory(&stages->inventory, paint);
		show_network(stages);
		print_roles(stages->env, paint);
		show_plan(stages, info->node_index, 1, info->own_rank);
		if (info->bound_to)
			printf("  this process may now run on CPUs %s\n", info->bound_to);
		if (stages->verbose || info->wanted_rank >= 0)
			rc = show_environment(stages, info->node_index, info->local_rank,
					      own ? info->changes : NULL, err);
	}
	show_warnings(paint, stages->warnings);
	return rc;
}
