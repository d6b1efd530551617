/* SPDX-License-Identifier: BSD-3-Clause */
#include "info/info.h"
#include "show.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"

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
	if (mbps < 0)
		return "";
	if (mbps < 1000)
		return cell(out, "%" PRId64 " Mb/s", mbps);
	return cell(out, "%g Gb/s", (double)mbps / 1000);
}

static const char *state_name(enum nic_state state)
{
	return state == NIC_STATE_UP ? "up" : state == NIC_STATE_DOWN ? "down" : "";
}

/* Print a title, and below it the wrapped text. */
static void section(const struct paint *paint, const char *title, const char *text)
{
	printf("\n%s%s%s\n  ", paint->bold, title, paint->off);
	text_wrap(text, 2, paint->width);
}

static void print_job(const struct alloc *alloc)
{
	char end[64] = "not known";
	struct tm tm;
	time_t seconds = (time_t)alloc->end_time;

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

static void print_alloc(const struct info *info, const struct paint *paint)
{
	const struct alloc *alloc = &info->stages.alloc;
	struct cell heading;

	cell(&heading, "%s: %s%s", alloc_from_name(alloc->source), alloc->why,
	     info->plan_file ? " (from BERTH_PLAN_FILE)" : "");
	section(paint, "Allocation", heading.text);
	print_job(alloc);
	show_nodes(alloc, NULL, paint);
}

static void print_launch(const struct info *info, const struct paint *paint)
{
	struct cell heading;

	if (!info->launcher)
		return;
	cell(&heading, "berth run starts one agent per node with %s%s", info->launcher->name,
	     info->verbose ? ":" : "");
	section(paint, "Launch", heading.text);
	if (info->verbose)
		printf("  %s\n", info->launcher_line);
}

static void print_settings(const struct env *env, const struct paint *paint)
{
	struct table table = {0};

	for (size_t i = 0; i < env_count(env); i++) {
		const struct env_var *var = env_at(env, i);

		if (var->from != ENV_FROM_SITE)
			continue;
		if (!table.row_count) {
			section(paint, "Settings", "from files of the site and the user");
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

static void print_inventory(const struct info *info, const struct paint *paint)
{
	const struct inventory *inventory = &info->stages.inventory;
	struct table table = {0};
	struct cell heading, numa, package, memory, cpus;

	cell(&heading,
	     "%s, from %s: %zu package%s, %zu core%s with CPUs %s, %zu GPU%s, %zu NIC%s%s",
	     inventory->node, inventory->source, inventory->package_count,
	     plural(inventory->package_count), inventory->core_count, plural(inventory->core_count),
	     cell_set(&cpus, inventory->allowed_cpus_os), inventory->gpu_count,
	     plural(inventory->gpu_count), inventory->nic_count, plural(inventory->nic_count),
	     inventory->this_system ? "" : "; from another machine, so ranks cannot be bound");
	section(paint, "Inventory", heading.text);
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

static void print_claims(const struct info *info, const struct paint *paint)
{
	struct table table = {0};
	const json_t *claim;
	size_t i;

	if (!json_array_size(info->claims))
		return;
	section(paint, "Other runs of this job", "what they use on this node");
	TABLE_ROW(&table, "use", "run");
	json_array_foreach(info->claims, i, claim)
	{
		const char *what = json_string_value(json_object_get(claim, "what"));
		const char *by = json_string_value(json_object_get(claim, "by"));

		TABLE_ROW(&table, what ? what : "nothing yet: it waits", by ? by : "?");
	}
	table_print(&table, paint, 2);
}

static void print_network(const struct info *info, const struct paint *paint)
{
	const struct plan *plan = &info->stages.plan;
	const struct plan_network *network = &plan->network;
	const struct plan_fabric *fabric = plan_fabric(network->kind);
	char port[48] = "a free port that rank 0's agent reserves", lead[96];

	section(paint, "Network", network->why ? network->why : "no reason recorded");
	if (plan->port)
		snprintf(port, sizeof port, "%d", plan->port);
	printf("  MASTER_ADDR %s%s%s, MASTER_PORT %s\n", network->address,
	       *network->iface ? " on " : "", network->iface, port);
	if (network->single_node)
		return;
	snprintf(lead, sizeof lead, "  %s: ", fabric->title);
	printf("%s", lead);

	struct cell text;

	text_wrap(cell(&text, "%s; set: %s (%s)", fabric->driven_by, fabric->settings,
		       fabric->source),
		  (int)strlen(lead), paint->width);
}

/* What this rank knows of the job's programs, from its environment. */
static void print_roles(const struct env *env, const struct paint *paint)
{
	static const char prefix[] = "BERTH_ROLE_", suffix[] = "_ADDR";
	const char *own = env_get(env, "BERTH_ROLE");
	struct table table = {0};
	struct cell name;

	if (!own)
		return;
	section(paint, "Roles", cell(&name, "this process is of role %s", own));
	TABLE_ROW(&table, "variable", "_ADDR", "_PORT", "_PORTS", "_NODES", "_WORLD_SIZE");
	for (size_t i = 0; i < env_count(env); i++) {
		const char *at = env_at(env, i)->name, *value[5];
		int size = (int)strlen(at) - (int)strlen(suffix);

		if (strncmp(at, prefix, strlen(prefix)) || size < 0 || strcmp(at + size, suffix))
			continue;
		for (size_t k = 0; k < 5; k++) {
			static const char *const what[] = {"ADDR", "PORT", "PORTS", "NODES",
							   "WORLD_SIZE"};

			value[k] = env_get(env, cell(&name, "%.*s_%s", size, at, what[k]));
			value[k] = value[k] ? value[k] : "";
		}
		TABLE_ROW(&table, cell(&name, "%.*s", size, at), value[0], value[1], value[2],
			  value[3], value[4]);
	}
	table_print(&table, paint, 2);
}

static void print_plan(const struct info *info, const struct paint *paint)
{
	const struct plan *plan = &info->stages.plan;
	const struct plan_node *node = &plan->nodes[info->node_index];
	struct cell heading, cpus;

	if (plan->node_count > 1)
		cell(&heading, "%d ranks, %zu of them on %s", plan->world_size, node->rank_count,
		     node->node);
	else
		cell(&heading, "%d rank%s on %s", plan->world_size,
		     plural((size_t)plan->world_size), node->node);
	section(paint, "Plan", heading.text);
	show_ranks(node, 1, info->plan_file ? node->ranks[info->own_local_rank].rank : -1, paint);
	if (idset_count(node->free_cpus_os))
		printf("  unused: CPUs %s\n", cell_set(&cpus, node->free_cpus_os));
	if (info->bound_to)
		printf("  this process may now run on CPUs %s\n", info->bound_to);
}

static void print_environment(const struct info *info, const struct paint *paint)
{
	const struct plan_node *node = &info->stages.plan.nodes[info->node_index];
	struct cell heading;

	cell(&heading, "of rank %d%s%s", node->ranks[info->local_rank].rank,
	     info->plan_file && info->local_rank == info->own_local_rank ? ", this process" : "",
	     info->other ? "; values marked * differ between the ranks of a node" : "");
	section(paint, "Environment", heading.text);
	show_environment(info->changes, info->other, paint);
}

/* Where this is, how large, on which network and what is wrong: a line each, up to the first
 * semicolon. The sections have the rest. */
static void print_answers(const struct info *info)
{
	const struct alloc *alloc = &info->stages.alloc;
	const struct plan *plan = &info->stages.plan;
	size_t nodes = info->plan_file ? plan->node_count : alloc->node_count;
	size_t count = json_array_size(info->warnings);
	const char *why = plan->network.why ? plan->network.why : "not known here";
	const char *wrong = json_string_value(json_array_get(info->warnings, 0));

	printf("  where     %s, job %s\n", alloc_from_name(alloc->source), alloc->job_id);
	printf("  size      %zu node%s", nodes, plural(nodes));
	if (!info->outside)
		printf(", %d rank%s; GPUs here: %zu", plan->world_size,
		       plural((size_t)plan->world_size), info->stages.inventory.gpu_count);
	printf("\n  network   %.*s\n", (int)strcspn(why, ";"), why);
	printf("  warnings  %zu%s%.*s\n", count, wrong ? ": " : "",
	       wrong ? (int)strcspn(wrong, ";") : 0, wrong ? wrong : "");
}

void info_print(const struct info *info, const struct paint *paint)
{
	const char *text;
	json_t *warning;
	size_t i;

	printf("%sberth " BERTH_VERSION "%s on %s\n", paint->bold, paint->off,
	       info->stages.inventory.node);
	print_answers(info);
	print_alloc(info, paint);
	print_launch(info, paint);
	print_settings(info->stages.env, paint);
	print_claims(info, paint);
	if (info->outside) {
		char why[INFO_NOT_KNOWN_MAX];

		section(paint, "Not known here", info_not_known(info, why));
	} else {
		print_inventory(info, paint);
		print_network(info, paint);
		print_roles(info->stages.env, paint);
		print_plan(info, paint);
		if (info->verbose || info->wanted_rank >= 0)
			print_environment(info, paint);
	}
	if (!json_array_size(info->warnings))
		return;
	printf("\n%sWarnings%s\n", paint->bold, paint->off);
	json_array_foreach(info->warnings, i, warning)
	{
		text = json_string_value(warning);
		printf("  %s!%s ", paint->warn, paint->off);
		text_wrap(text ? text : "?", 4, paint->width);
	}
}
