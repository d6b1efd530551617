/* SPDX-License-Identifier: BSD-3-Clause */
/* berth plan: what the ranks of one node would get, from an hwloc XML or this machine. */
#include "arguments.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/plan.h"
#include "report/plan_svg.h"
#include "show.h"
#include "verb.h"

#define RANKS_MAX 4096
#define GPUS_MAX 1024

struct plan_arguments {
	struct plan_request request;
	const char *topology, *svg;
	bool json, xml;
};

#define REQUEST(member) offsetof(struct plan_arguments, request.member)

static const struct arguments_option option_table[] = {
	{"topology", "FILE",
	 "Read this hwloc XML file, as written by lstopo --whole-system FILE.xml (default: this "
	 "machine, or BERTH_TOPOLOGY)",
	 ARGUMENTS_TEXT, offsetof(struct plan_arguments, topology), .letter = 't'},
	{"ranks", "N", "Plan N ranks (default: one per GPU, else one)", ARGUMENTS_INT,
	 REQUEST(ranks), 1, RANKS_MAX, .letter = 'n'},
	{"gpus-per-rank", "K", "Give each rank K GPUs; implies --gpus-visible own", ARGUMENTS_INT,
	 REQUEST(gpus_per_rank), 1, GPUS_MAX},
	{"gpus-visible", "all|own",
	 "GPUs that a rank sees: all of the plan (default), or its own only", ARGUMENTS_BOOL,
	 REQUEST(gpus_visible_own), 1},
	{"all-cores", NULL,
	 "Also share out the cores of packages without a used GPU, which otherwise stay free",
	 ARGUMENTS_FLAG, REQUEST(all_cores)},
	{"svg", "FILE", "Also draw the node with its ranks into FILE, as SVG", ARGUMENTS_TEXT,
	 offsetof(struct plan_arguments, svg), .expected = "a file name"},
	{"json", NULL, "Print one JSON object (berth.plan/1) instead of text", ARGUMENTS_FLAG,
	 offsetof(struct plan_arguments, json), .letter = 'j'},
	{"xml", NULL,
	 "Print the node's topology as hwloc XML instead, for --topology on another machine",
	 ARGUMENTS_FLAG, offsetof(struct plan_arguments, xml)},
	{0},
};

static const struct arguments_command command = {
	.tables = {{option_table}},
	.positional = ARGUMENTS_NONE,
	.doc = "Show which GPU, cores and NICs each rank of one node gets, and why.\vNeeds no job "
	       "and no scheduler, and starts nothing. The XML file may come from another machine.",
};

/* ---- text ---- */

static void print_text(const struct inventory *inventory, const struct plan_node *node,
		       const json_t *warnings, const struct env *env)
{
	struct paint paint;
	struct cell counts;

	paint_init(env, &paint);
	printf("%s%zu rank%s on %s%s: %s\n", paint.bold, node->rank_count, plural(node->rank_count),
	       inventory->node && *inventory->node ? inventory->node : "a node", paint.off,
	       cell_inventory(&counts, inventory));
	show_ranks(node, 1, -1, &paint);
	if (node->visible_devices)
		printf("%s=%s\n", plan_gpu_vendor(inventory)->list, node->visible_devices);
	show_warnings(&paint, warnings);
}

static int print_xml(const char *topology, const struct env *env, struct error *err)
{
	struct inventory_source source = {.topology_file = topology, .all_devices = true};
	struct bytes xml = {0};
	int rc;

	if (!topology)
		source.topology_file = inventory_topology_file(env);
	rc = inventory_topology_xml(&source, &xml, err);
	if (!rc)
		fwrite(xml.data, 1, xml.size, stdout);
	bytes_free(&xml);
	return rc;
}

/* ---- the verb ---- */

/* A capture of another machine is used as it is; for this machine the environment's device lists
 * apply. */
static int make_plan(const struct plan_arguments *options, const struct env *env,
		     struct inventory *inventory, struct plan_node *out, struct error *err)
{
	struct inventory_source source = {.topology_file = options->topology};
	struct alloc_node node = {.gpus = -1};
	struct alloc alloc = {.node_count = 1, .nodes = &node};
	int count = 0, rc;

	source.no_network = source.topology_file || inventory_topology_file(env);
	rc = inventory_discover_from_env(&source, env, inventory, err);
	node.name = inventory->node;
	if (!rc)
		rc = plan_rank_counts(&alloc, inventory, 1, &options->request, &count, err);
	return rc ? rc : plan_map_node(inventory, &options->request, 0, count, out, err);
}

static int write_svg(const char *file, const struct inventory *inventory,
		     const struct plan_node *node, struct error *err)
{
	struct bytes picture = {0};
	int rc = plan_svg(inventory, node, &picture, err);

	if (!rc)
		rc = file_write_atomic(file, picture.data, picture.size, 0666, err);
	bytes_free(&picture);
	return rc;
}

int verb_plan(int argc, char **argv)
{
	struct plan_arguments options = {0};
	struct inventory inventory = {0};
	struct plan_node node = {0};
	struct error err = {0};

	arguments_parse(&command, argc, argv, &options);

	struct env *env = env_capture();
	JSON_AUTO json = NULL;
	int rc = env ? 0 : error_memory(&err, "the environment");

	if (!rc && options.xml) {
		rc = print_xml(options.topology, env, &err);
	} else if (!rc) {
		rc = make_plan(&options, env, &inventory, &node, &err);
		if (!rc && options.svg)
			rc = write_svg(options.svg, &inventory, &node, &err);
		if (!rc && !(json = plan_node_to_json(&node)))
			rc = error_memory(&err, "berth.plan/1");
		if (!rc && options.json)
			rc = json_print(json, stdout, &err);
		else if (!rc)
			print_text(&inventory, &node, json_object_get(json, "warnings"), env);
	}
	plan_node_free(&node);
	inventory_free(&inventory);
	env_free(env);
	return rc ? verb_fail(&err) : 0;
}
