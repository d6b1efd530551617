/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans of training steps, for all models and random networks, by the rules of devices that add to
 * gradients and of devices that do not. Each plan is run on labels instead of numbers: what a node
 * reads must be what it needs, whole, and nothing may be overwritten that a later node reads. Also
 * how much memory a plan needs, what its nodes cost, and which graphs are refused. */
#include "../rows.h"

#include <stdbool.h>

#include "../../gpu/step_cost.h"
#include "random_graph.h"
#include "train/executor/step_plan.h"
#include "train/model/graph.h"

#define ALIGNMENT 64

/* ---- memory that holds labels ---- */

enum holds { VALUE, COPY, KEPT, GRADIENT, OWN };

/* The range holds a value (or a copy, ...), or a part of its gradient: how many readers' shares it
 * has. One range may be the gradient of two values. */
struct label {
	size_t begin, end;
	enum holds holds;
	int value, shares;
};

#define LABELS 4096

struct machine {
	const struct step_plan *plan;
	const struct step_rules *rules;
	struct label labels[LABELS];
	int count, node;
};

static void wrong(const struct machine *machine, const char *what, int value)
{
	const struct step_node *node = &machine->plan->nodes[machine->node];

	fail_msg("%s, node %d (%s): %s, value %d", machine->plan->graph->model, machine->node,
		 op_name(node->kind), what, value);
}

static struct label range_of(const struct machine *machine, int slot)
{
	const struct memory_item *item = &machine->plan->slots[slot];

	return (struct label){.begin = item->offset, .end = item->offset + item->size_bytes};
}

static bool overlap(const struct machine *machine, int slot, int other)
{
	struct label a, b;

	if (slot == NO_SLOT || other == NO_SLOT)
		return false;
	a = range_of(machine, slot);
	b = range_of(machine, other);
	return a.begin < b.end && b.begin < a.end;
}

static void share(struct machine *machine, int slot, struct label label)
{
	struct label range = range_of(machine, slot);

	label.begin = range.begin;
	label.end = range.end;
	assert_true(machine->count < LABELS);
	machine->labels[machine->count++] = label;
}

static void write(struct machine *machine, int slot, struct label label)
{
	struct label range = range_of(machine, slot);
	int kept = 0;

	for (int i = 0; i < machine->count; i++)
		if (machine->labels[i].end <= range.begin || range.end <= machine->labels[i].begin)
			machine->labels[kept++] = machine->labels[i];
	machine->count = kept;
	share(machine, slot, label);
}

static struct label *find(struct machine *machine, int slot, enum holds holds, int value)
{
	struct label range = range_of(machine, slot);

	for (int i = 0; i < machine->count; i++) {
		struct label *label = &machine->labels[i];

		if (label->begin == range.begin && label->end == range.end &&
		    label->holds == holds && label->value == value)
			return label;
	}
	return NULL;
}

static void holds_it(struct machine *machine, int slot, enum holds holds, int value,
		     const char *what)
{
	if (slot == NO_SLOT || !find(machine, slot, holds, value))
		wrong(machine, what, value);
}

/* The input may lie elsewhere. */
static void holds_value(struct machine *machine, int slot, int value, const char *what)
{
	if (value || machine->plan->input != NO_SLOT)
		holds_it(machine, slot, VALUE, value, what);
}

/* ---- forward ---- */

static bool is_layer(const struct step_node *node)
{
	return node->kind == OP_CONV2D || node->kind == OP_LINEAR;
}

/* A second ReLU changes nothing. */
static bool is_rectified(const struct step_plan *plan, int value)
{
	for (int i = 0; i < plan->node_count; i++)
		if (plan->nodes[i].output == value)
			return plan->nodes[i].kind == OP_RELU || plan->nodes[i].relu;
	return false;
}

static void forward(struct machine *machine)
{
	const struct step_node *node = &machine->plan->nodes[machine->node];
	const struct step_size *size = &machine->rules->sizes[machine->node];
	const struct label result = {.holds = VALUE, .value = node->output};
	int source = node->input2 >= 0 ? node->input2 : node->input;

	holds_value(machine, node->x, node->input, "x is not there");
	if (node->input2 >= 0)
		holds_value(machine, node->z, node->input2, "z is not there");
	if (size->copy)
		write(machine, node->copy, (struct label){.holds = COPY, .value = source});
	if (size->kept)
		write(machine, node->kept, (struct label){.holds = KEPT, .value = node->output});
	if (overlap(machine, node->y, node->z) || overlap(machine, node->y, node->copy) ||
	    overlap(machine, node->y, node->kept) ||
	    (overlap(machine, node->y, node->x) && node->kind != OP_RELU))
		wrong(machine, "its result overwrites what it reads", node->output);
	if (overlap(machine, node->y, node->x) && is_rectified(machine->plan, node->input))
		share(machine, node->y, result);
	else
		write(machine, node->y, result);
}

/* ---- backward ---- */

/* Its gradient has arrived whole: as one sum, or in parts of different nodes. Where it then is. */
static void gather(struct machine *machine, const struct step_node *node)
{
	int shares = 0, value = node->output;

	for (int i = 0; i < node->dy_count; i++) {
		const struct label *part = find(machine, node->dy[i], GRADIENT, value);

		if (!part)
			wrong(machine, "a part of dy is not there", value);
		shares += part->shares;
		/* x + (x + z) makes one place two parts of the gradient of x. */
		int times = 0, parts = 0;

		for (int k = 0; k < node->dy_count; k++)
			times += node->dy[k] == node->dy[i];
		for (int k = 0; k < machine->count; k++)
			parts += machine->labels[k].begin == part->begin &&
				 machine->labels[k].holds == GRADIENT &&
				 machine->labels[k].value == value;
		if (times > parts)
			wrong(machine, "a part of dy is read twice", value);
	}
	if (machine->rules->adds && node->dy_count != 1)
		wrong(machine, "it gets parts, but the device adds", value);
	if (shares != machine->plan->readers[value])
		wrong(machine, "dy lacks parts", value);
	if (node->dy_count > (node->kind == OP_BATCHNORM ? 2 : 1) && node->sum == NO_SLOT)
		wrong(machine, "it cannot read all parts of dy", value);
	for (int i = 1; node->sum != NO_SLOT && i < node->dy_count; i++)
		if (overlap(machine, node->sum, node->dy[i]))
			wrong(machine, "the sum overwrites a part of dy", value);
	if (node->sum != NO_SLOT)
		write(machine, node->sum, (struct label){.holds = GRADIENT, .value = value});
}

static void read_values(struct machine *machine, const struct step_node *node)
{
	if (is_layer(node) && node->copy != NO_SLOT)
		holds_it(machine, node->copy, COPY, node->input, "the copy of x is not there");
	else if (is_layer(node) || node->kind == OP_BATCHNORM)
		holds_value(machine, node->x, node->input, "x is not there");
	if (node->kind == OP_RELU ||
	    (node->kind == OP_BATCHNORM && node->input2 >= 0 && node->relu))
		holds_it(machine, node->y, VALUE, node->output, "y is not there");
	if (node->kept != NO_SLOT)
		holds_it(machine, node->kept, KEPT, node->output,
			 "what the node keeps is not there");
}

/* Does a node that writes to slot overwrite what it still reads? Batch norms and ReLUs go through
 * dy and their results element by element. */
static void check_target(const struct machine *machine, const struct step_node *node, int slot)
{
	bool layer = is_layer(node), norm = node->kind == OP_BATCHNORM;
	bool in_place = norm || node->kind == OP_RELU || node->kind == OP_ADD;
	bool reads_y = node->kind == OP_RELU || (norm && node->input2 >= 0 && node->relu);

	for (int i = 0; i < node->dy_count; i++)
		if (overlap(machine, slot, node->dy[i]) && !(slot == node->dy[i] && in_place))
			wrong(machine, "a gradient overwrites dy", node->output);
	if ((norm || (layer && node->copy == NO_SLOT)) && overlap(machine, slot, node->x))
		wrong(machine, "a gradient overwrites x", node->input);
	if (reads_y && overlap(machine, slot, node->y))
		wrong(machine, "a gradient overwrites y", node->output);
	if (overlap(machine, slot, node->kept) || (layer && overlap(machine, slot, node->copy)))
		wrong(machine, "a gradient overwrites what the node kept", node->output);
}

static void pass_on(struct machine *machine, const struct step_node *node, int value, int slot,
		    bool add, bool copies)
{
	struct label label = {.holds = GRADIENT, .value = value, .shares = 1};
	struct label *there = add ? find(machine, slot, GRADIENT, value) : NULL;

	check_target(machine, node, slot);
	if (add && !there)
		wrong(machine, "it adds to a gradient that is not there", value);
	if (add) {
		there->shares++;
		return;
	}
	if (copies) {
		if (slot != step_node_dy(node) || node->kind != OP_ADD)
			write(machine, slot, (struct label){.holds = OWN, .value = value});
		slot = node->copy_out;
		check_target(machine, node, slot);
	} else if (node->kind == OP_ADD && slot == step_node_dy(node)) {
		share(machine, slot, label);
		return;
	}
	write(machine, slot, label);
}

static void backward(struct machine *machine)
{
	const struct step_node *node = &machine->plan->nodes[machine->node];
	bool copies = machine->rules->sizes[machine->node].copy_out;

	gather(machine, node);
	read_values(machine, node);
	if (node->dx != NO_SLOT && node->dz != NO_SLOT && overlap(machine, node->dx, node->dz) &&
	    !(node->kind == OP_ADD && node->dx == node->dz && !machine->rules->adds) &&
	    !(node->input == node->input2 && node->add_dx))
		wrong(machine, "dx and dz are in one place", node->input);
	if ((node->input > 0) != (node->dx != NO_SLOT) ||
	    (node->input2 > 0) != (node->dz != NO_SLOT))
		wrong(machine, "a gradient has no place, or one that nothing needs", node->input);
	if (node->dz != NO_SLOT)
		pass_on(machine, node, node->input2, node->dz, node->add_dz, copies);
	if (node->dx != NO_SLOT)
		pass_on(machine, node, node->input, node->dx, node->add_dx,
			copies && node->input2 < 0);
}

static void run(const struct step_plan *plan, const struct step_rules *rules)
{
	struct machine *machine = calloc(1, sizeof *machine);
	int n = plan->node_count, output = plan->graph->output;

	assert_non_null(machine);
	machine->plan = plan;
	machine->rules = rules;
	if (plan->input != NO_SLOT)
		write(machine, plan->input, (struct label){.holds = VALUE});
	for (machine->node = 0; machine->node < n; machine->node++)
		forward(machine);
	machine->node = n - 1;
	holds_it(machine, plan->output, VALUE, output, "the output is not there");
	if (plan->train) {
		assert_false(overlap(machine, plan->output, plan->output_gradient));
		write(machine, plan->output_gradient,
		      (struct label){.holds = GRADIENT, .value = output, .shares = 1});
		for (; machine->node >= 0; machine->node--)
			backward(machine);
	}
	free(machine);
}

/* ---- rules ---- */

/* Rules as a device might have them; seed chooses which nodes have layouts of their own. */
struct made_rules {
	struct step_rules rules;
	size_t *value_bytes;
	struct step_size *sizes;
};

static size_t bytes_of(const struct graph *graph, int value, int batch)
{
	return (size_t)shape_count(&graph->values[value]) * (size_t)batch * 4;
}

static struct made_rules make_rules(const struct step_plan *plan, int batch, bool adds,
				    uint64_t seed)
{
	const struct graph *graph = plan->graph;
	struct made_rules made = {
		.value_bytes = calloc((size_t)graph->value_count, sizeof *made.value_bytes),
		.sizes = calloc((size_t)plan->node_count + 1, sizeof *made.sizes)};

	for (int i = adds ? 0 : 1; i < graph->value_count; i++)
		made.value_bytes[i] = bytes_of(graph, i, batch);
	for (int i = 0; i < plan->node_count; i++) {
		const struct step_node *node = &plan->nodes[i];
		int from = node->input2 >= 0 ? node->input2 : node->input;
		bool own = is_layer(node) || node->input2 >= 0;
		/* What is added has the shape of the result. */
		size_t more = is_layer(node) ? 64 : 0;

		if (node->kind == OP_MAXPOOL2D)
			made.sizes[i].kept = bytes_of(graph, node->output, batch) / 2;
		if (!adds && own && (seed >> (i % 50) & 1))
			made.sizes[i].copy = bytes_of(graph, from, batch) + more;
		if (!adds && own && from && (seed >> (i % 50 + 5) & 1))
			made.sizes[i].copy_out = bytes_of(graph, from, batch) + more;
	}
	made.rules = (struct step_rules){.alignment = ALIGNMENT,
					 .value_bytes = made.value_bytes,
					 .sizes = made.sizes,
					 .scratch_bytes = {1000, 77},
					 .adds = adds};
	return made;
}

/* Plan and run; -> the bytes of the arena. */
static size_t planned(const struct graph *graph, int batch, bool train, bool adds, uint64_t seed)
{
	struct error err = {0};
	struct step_plan plan;
	struct made_rules made;
	size_t bytes;

	if (step_plan_make(graph, train, &plan, &err))
		fail_msg("%s", err.text);
	made = make_rules(&plan, batch, adds, seed);
	assert_int_equal(step_plan_place(&plan, &made.rules, &err), 0);
	for (int i = 0; i < plan.slot_count; i++)
		assert_int_equal(plan.slots[i].offset % ALIGNMENT, 0);
	run(&plan, &made.rules);
	bytes = plan.arena_bytes;
	step_plan_free(&plan);
	assert_null(plan.nodes);
	free(made.value_bytes);
	free(made.sizes);
	return bytes;
}

/* ---- cases ---- */

static void random_graphs(void **state)
{
	const struct shape shapes[] = {{3, 6, 6}, {8, 6, 6}};

	for (uint64_t seed = 0; seed < 2000; seed++) {
		struct graph *graph =
			random_graph(seed, &shapes[seed % 2], 5, 2 + (int)(seed % 60));

		for (int how = 0; how < 4; how++)
			planned(graph, 2, how & 1, how & 2, seed * 0x9e3779b97f4a7c15u);
		graph_free(graph);
	}
}

/* The memory of a step in which each value and each gradient has a place of its own. */
static size_t unplanned(const struct graph *graph, int batch, bool train)
{
	size_t sum = 0;

	for (int i = 0; i < graph->value_count; i++)
		sum += bytes_of(graph, i, batch) * (train && i ? 2 : 1);
	return sum;
}

/* The values that must be kept for the backward pass: those that it reads, counted once if a ReLU
 * works in place. */
static size_t kept(const struct graph *graph, int batch)
{
	bool *read = calloc((size_t)graph->value_count, sizeof *read);
	size_t sum = 0;

	for (int i = 0; i < graph->op_count; i++)
		if (graph->ops[i].kind == OP_CONV2D || graph->ops[i].kind == OP_LINEAR ||
		    graph->ops[i].kind == OP_BATCHNORM)
			read[graph->ops[i].input] = true;
	for (int i = 0; i < graph->value_count; i++)
		sum += read[i] ? bytes_of(graph, i, batch) : 0;
	free(read);
	return sum;
}

static void models(void **state)
{
	static const struct {
		const char *model;
		int side, batch;
		enum model_stem stem;
		bool train;
		size_t bytes[2]; /* at most, of a device that adds to gradients and of others */
	} rows[] = {
		{"convnet", 28, 4, STEM_DEFAULT, true, {144973, 132429}},
		{"resnet18", 64, 4, STEM_DEFAULT, true, {5866573, 5669965}},
		{"resnet18", 32, 3, STEM_CIFAR, true, {14292045, 14255181}},
		{"resnet34", 64, 2, STEM_DEFAULT, true, {4572237, 4473933}},
		{"resnet50", 224, 2, STEM_DEFAULT, true, {164578381, 163374157}},
		{"resnet152", 64, 1, STEM_DEFAULT, true, {14189645, 14140493}},
		{"resnet18", 64, 4, STEM_DEFAULT, false, {2098253, 2098253}},
		{"resnet50", 64, 4, STEM_DEFAULT, false, {3146829, 3146829}},
		{"linear", 4, 5, STEM_DEFAULT, true, {1933, 1613}},
	};

	for (size_t r = 0; r < ROWS(rows) * 2; r++) {
		const char *model = rows[r / 2].model;
		int side = rows[r / 2].side, batch = rows[r / 2].batch;
		bool residual = model[0] == 'r', train = rows[r / 2].train, adds = r % 2;
		const struct shape shape = {residual ? 3 : 1, side, side};
		struct error err = {0};
		struct graph *graph;
		size_t bytes;

		assert_int_equal(model_build(model, &shape, 10, rows[r / 2].stem, &graph, &err), 0);
		bytes = planned(graph, batch, train, adds, 0);
		print_message("%s %d batch %d %s: %zu bytes, %zu without a plan\n", model, side,
			      batch, train ? "training" : "evaluation", bytes,
			      unplanned(graph, batch, train));
		assert_true(bytes <= rows[r / 2].bytes[!adds]);
		/* Gradients exist next to the kept values for a few ops only. */
		if (train && residual) {
			assert_true(bytes >= kept(graph, batch));
			assert_true(bytes * 2 <= kept(graph, batch) * 3);
		}
		if (residual)
			assert_true(bytes * 2 <= unplanned(graph, batch, train));
		graph_free(graph);
	}
}

static void refused(void **state)
{
	static const struct {
		const char *said;
		int readers;
		bool unread, twice;
	} rows[] = {
		{"read 0 times", 1, true, false},
		{"add) reads one value twice", 1, false, true},
		{"read 9 times, expected 1 to 8", 9, false, false},
	};
	const struct shape shape = {2, 4, 4};

	for (size_t r = 0; r < ROWS(rows); r++) {
		struct graph *graph = graph_new("odd", &shape, 10);
		int value = graph_conv2d(graph, "a", 0, 3, 1, 1, 0, true), sum;
		struct error err = {0};
		struct step_plan plan;

		sum = graph_relu(graph, value);
		for (int i = 1; i < rows[r].readers; i++)
			sum = graph_add(graph, sum, value);
		if (rows[r].unread)
			graph_relu(graph, value);
		if (rows[r].twice)
			sum = graph_add(graph, sum, sum);
		graph_linear(graph, "b", sum, 10);
		assert_int_equal(graph->error.code, 0);
		assert_int_equal(step_plan_make(graph, true, &plan, &err), -ERR_INTERNAL);
		if (!strstr(err.text, rows[r].said))
			fail_msg("\"%s\" lacks \"%s\"", err.text, rows[r].said);
		graph_free(graph);
	}
}

/* Sizes whose sum does not fit a size_t. */
static void too_large(void **state)
{
	const struct shape shape = {2, 4, 4};
	struct graph *graph = random_graph(1, &shape, 5, 9);
	struct error err = {0};
	struct step_plan plan;
	struct made_rules made;

	assert_int_equal(step_plan_make(graph, true, &plan, &err), 0);
	made = make_rules(&plan, 1, false, 0);
	for (int i = 1; i < graph->value_count; i++)
		made.value_bytes[i] = SIZE_MAX / 4;
	assert_int_equal(step_plan_place(&plan, &made.rules, &err), -ERR_UNAVAILABLE);
	step_plan_free(&plan);
	free(made.value_bytes);
	free(made.sizes);
	graph_free(graph);
}

/* Two samples of 2x6x6; the costs are worked out by hand. */
static const struct {
	int node;
	enum step_pass pass;
	size_t element;
	double flop, bytes;
	const char *why;
	bool adds;
} cost_rows[] = {
	/* x 144, y 216 values; 54 weights, 108 products per result pixel of a channel */
	{0, STEP_FORWARD, 4, 2 * 72 * 54, 4 * (144 + 216 + 54), "convolution"},
	{0, STEP_FORWARD, 2, 2 * 72 * 54, 2 * (144 + 216 + 54), "in 16 bits"},
	{0, STEP_WEIGHTS, 2, 2 * 72 * 54, 2 * (144 + 216) + 4 * 54, "gradients in 32"},
	{0, STEP_INPUT, 4, 0, 0, "nothing reaches the input"},
	{1, STEP_FORWARD, 4, 0, 4 * 3 * 216, "batch norm: x twice, y"},
	{1, STEP_INPUT, 4, 0, 4 * 5 * 216, "x and dy twice, dx"},
	{1, STEP_WEIGHTS, 4, 0, 0, "one pass"},
	{2, STEP_FORWARD, 4, 2 * 72 * 81, 4 * (216 + 216 + 81), "second convolution"},
	{2, STEP_INPUT, 4, 2 * 72 * 81, 4 * (216 + 81 + 216), "and its input"},
	{3, STEP_FORWARD, 4, 0, 4 * 4 * 216, "batch norm that adds"},
	{3, STEP_INPUT, 4, 0, 4 * 6 * 216, "the same"},
	{4, STEP_FORWARD, 4, 0, 4 * (216 + 54) + 54, "max pooling, with positions"},
	{5, STEP_INPUT, 4, 2 * 18 * 9, 4 * (54 + 9 + 54), "a 1x1 convolution"},
	{5, STEP_INPUT, 4, 2 * 18 * 9, 4 * (54 + 9 + 2 * 54), "it adds", true},
	{6, STEP_INPUT, 4, 0, 0, "an addition's gradients are dy"},
	{6, STEP_INPUT, 4, 0, 4 * 2 * 54, "one is a copy", true},
	{7, STEP_FORWARD, 4, 2 * 2 * 135, 4 * (54 + 10 + 135), "linear"},
};

static struct graph *costed(void)
{
	const struct shape shape = {2, 6, 6};
	struct graph *graph = graph_new("small", &shape, 5);
	int a = graph_conv2d(graph, "a", 0, 3, 3, 1, 1, false), b;

	a = graph_relu(graph, graph_batchnorm(graph, "n1", a));
	b = graph_batchnorm(graph, "n2", graph_conv2d(graph, "b", a, 3, 3, 1, 1, false));
	b = graph_maxpool2d(graph, graph_relu(graph, graph_add(graph, b, a)), 2, 2, 0);
	b = graph_add(graph, graph_conv2d(graph, "c", b, 3, 1, 1, 0, false), b);
	graph_linear(graph, "d", b, 5);
	assert_int_equal(graph->error.code, 0);
	return graph;
}

static void costs(void **state)
{
	struct graph *graph = costed();
	struct error err = {0};

	for (int adds = 0; adds < 2; adds++) {
		struct step_plan plan;
		struct made_rules made;
		char text[32];

		assert_int_equal(step_plan_make(graph, true, &plan, &err), 0);
		made = make_rules(&plan, 2, adds, 0);
		assert_int_equal(step_plan_place(&plan, &made.rules, &err), 0);
		for (size_t r = 0; r < ROWS(cost_rows); r++) {
			const struct step_cost cost =
				step_node_cost(&plan, &plan.nodes[cost_rows[r].node],
					       cost_rows[r].pass, 2, cost_rows[r].element);

			if (cost_rows[r].adds != adds)
				continue;
			if (cost.flop != cost_rows[r].flop || cost.bytes != cost_rows[r].bytes)
				fail_msg("%s: %g operations and %g bytes, expected %g and %g",
					 cost_rows[r].why, cost.flop, cost.bytes, cost_rows[r].flop,
					 cost_rows[r].bytes);
		}
		step_node_name(&plan.nodes[3], text, sizeof text);
		assert_string_equal(text, "batchnorm+add+relu");
		step_plan_free(&plan);
		free(made.value_bytes);
		free(made.sizes);
	}
	graph_free(graph);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_graphs), cmocka_unit_test(models),
		cmocka_unit_test(costs),	 cmocka_unit_test(refused),
		cmocka_unit_test(too_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
