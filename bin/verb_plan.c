/* SPDX-License-Identifier: BSD-3-Clause */
/* berth plan: what the ranks of one node would get, from an hwloc XML or this machine. */
#include <argp.h>

#include "arguments.h"
#include "base/json.h"
#include "options.h"
#include "plan/plan.h"
#include "show.h"
#include "table.h"
#include "verb.h"

enum option_key {
	OPTION_TOPOLOGY = 't',
	OPTION_JSON = 'j',
	OPTION_RANKS = 'n',
	OPTION_GPUS_PER_RANK = 0x100,
	OPTION_GPUS_VISIBLE,
	OPTION_ALL_CORES,
};

#define RANKS_MAX 4096
#define GPUS_MAX 1024

struct plan_options {
	struct plan_request request;
	const char *topology;
	bool json;
};

static const struct argp_option option_table[] = {
	{"topology", OPTION_TOPOLOGY, "FILE", 0,
	 "An hwloc XML, as lstopo --whole-system FILE.xml writes it (default: this machine, or "
	 "BERTH_TOPOLOGY)",
	 1},
	{"ranks", OPTION_RANKS, "N", 0, "Ranks on the node (default: one a GPU, else one)", 1},
	{"gpus-per-rank", OPTION_GPUS_PER_RANK, "K", 0, "GPUs of each rank", 1},
	{"gpus-visible", OPTION_GPUS_VISIBLE, "all|own", 0,
	 "What a rank sees: all GPUs of the plan (default), or its own only", 1},
	{"all-cores", OPTION_ALL_CORES, NULL, 0,
	 "Deal out the cores that would stay free (those near no used GPU)", 1},
	{"json", OPTION_JSON, NULL, 0, "Print berth.plan/1 instead of text", 1},
	{NULL, 0, NULL, 0, NULL, 0},
};

static error_t option_parse(int key, char *text, struct argp_state *state)
{
	struct plan_options *options = state->input;
	struct error err = {0};

	switch (key) {
	case OPTION_TOPOLOGY:
		options->topology = text;
		return 0;
	case OPTION_JSON:
		options->json = true;
		return 0;
	case OPTION_RANKS:
		arguments_number(state, "--ranks", text, RANKS_MAX, &options->request.ranks);
		return 0;
	case OPTION_GPUS_PER_RANK:
		arguments_number(state, "--gpus-per-rank", text, GPUS_MAX,
				 &options->request.gpus_per_rank);
		return 0;
	case OPTION_GPUS_VISIBLE:
		options->request.gpus_visible_own = options_gpus_visible(state, text);
		return 0;
	case OPTION_ALL_CORES:
		options->request.all_cores = true;
		return 0;
	case ARGP_KEY_ARG:
		error_set(&err, ERR_USAGE, "unexpected argument '%s'", text);
		arguments_refuse(state, &err);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp plan_argp = {
	option_table,
	option_parse,
	NULL,
	"Show which GPU, cores and NICs each rank of one node gets, and why.\v"
	"No job and no scheduler are needed, and nothing is started. The XML may be another "
	"machine's.",
	NULL,
	NULL,
	NULL,
};

/* ---- text ---- */

static void print_summary(const struct inventory *inventory, const struct plan_node *node,
			  const struct paint *paint)
{
	printf("%s%zu rank%s on %s%s: %zu package%s, %zu NUMA node%s, %zu core%s, %zu GPU%s, "
	       "%zu NIC%s\n",
	       paint->bold, node->rank_count, plural(node->rank_count),
	       inventory->node && *inventory->node ? inventory->node : "a node", paint->off,
	       inventory->package_count, plural(inventory->package_count), inventory->numa_count,
	       plural(inventory->numa_count), inventory->core_count, plural(inventory->core_count),
	       inventory->gpu_count, plural(inventory->gpu_count), inventory->nic_count,
	       plural(inventory->nic_count));
}

static void add_row(struct table *table, const struct plan_rank *rank)
{
	struct cell number, gpus, cores, cpus, numa, nics;

	TABLE_ROW(table, cell(&number, "%d", rank->local_rank), cell_gpus(&gpus, rank),
		  cell(&cores, "%d", rank->threads), cell_set(&cpus, rank->cpus_os),
		  cell_set(&numa, rank->numa_os), cell_nics(&nics, rank),
		  rank->why ? rank->why : "");
}

static void print_text(const struct inventory *inventory, const struct plan_node *node)
{
	struct env *env = env_capture();
	struct table *table = table_new();
	struct paint paint;

	paint_init(stdout, env, &paint);
	print_summary(inventory, node, &paint);
	TABLE_ROW(table, "rank", "GPU", "cores", "CPUs", "NUMA", "NICs", "why");
	for (size_t r = 0; r < node->rank_count; r++)
		add_row(table, &node->ranks[r]);
	table_print(table, stdout, &paint, 2);
	if (node->visible_devices)
		printf("CUDA_VISIBLE_DEVICES=%s\n", node->visible_devices);
	for (size_t w = 0; w < node->warning_count; w++) {
		printf("%s!%s ", paint.warn, paint.off);
		text_wrap(stdout, node->warnings[w], 2, paint.width);
	}
	for (size_t n = 0; n < inventory->note_count; n++) {
		printf("%s!%s ", paint.warn, paint.off);
		text_wrap(stdout, inventory->notes[n], 2, paint.width);
	}
	table_free(table);
	env_free(env);
}

/* ---- the verb ---- */

/* Another machine's capture is read alone; this machine with what its environment allows. */
static int load(const struct plan_options *options, struct inventory *out, struct error *err)
{
	struct inventory_source source = {.topology_file = options->topology};
	struct env *env = env_capture();
	int rc;

	if (!env)
		return error_memory(err, "the environment");
	source.no_network = source.topology_file || inventory_topology_file(env);
	rc = inventory_discover_from_env(&source, env, out, err);
	env_free(env);
	return rc;
}

static int make(const struct inventory *inventory, const struct plan_request *request,
		struct plan_node *out, struct error *err)
{
	struct alloc_node node = {.name = inventory->node, .gpus = -1};
	struct alloc alloc = {.node_count = 1, .nodes = &node};
	int count = 0, rc = plan_rank_counts(&alloc, inventory, 1, request, &count, err);

	return rc ? rc : plan_map_node(inventory, request, 0, count, out, err);
}

static int show(const struct plan_options *options, const struct inventory *inventory,
		const struct plan_node *node, struct error *err)
{
	if (!options->json) {
		print_text(inventory, node);
	} else {
		JSON_AUTO json = plan_node_to_json(node);
		int rc = json ? json_print(json, stdout, err) : error_memory(err, "berth.plan/1");

		if (rc)
			return rc;
	}
	return fflush(stdout) || ferror(stdout)
		       ? error_set(err, ERR_IO, "standard output: cannot be written")
		       : 0;
}

int verb_plan(int argc, char **argv)
{
	struct plan_options options = {0};
	struct inventory inventory = {0};
	struct plan_node node = {0};
	struct error err = {0};

	arguments_parse(&plan_argp, argc, argv, 0, &options);

	int rc = load(&options, &inventory, &err);

	if (!rc)
		rc = make(&inventory, &options.request, &node, &err);
	if (!rc)
		rc = show(&options, &inventory, &node, &err);
	plan_node_free(&node);
	inventory_free(&inventory);
	return rc ? verb_fail(&err) : 0;
}
