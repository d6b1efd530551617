/* SPDX-License-Identifier: BSD-3-Clause */
/* The default executor on the reference device: 50 losses of convnet compared with PyTorch's, its
 * totals, when it reduces buckets, and its behaviour with too many samples, with no samples, and
 * with a comm that fails. */
#include "../../reference/reference.h"
#include "../../support/vectors.h"
#include "../rows.h"

#include <math.h>

#include "train/comm/comm.h"
#include "train/comm/ddp.h"
#include "train/executor/executor.h"
#include "train/model/graph.h"
#include "train/run/optim.h"

#define BATCH 32
#define SIDE 28

/* A comm that records its calls and fails at a chosen one. */
struct recorder {
	struct comm comm;
	int count, finished, fail_at;
	struct {
		const void *data;
		size_t count;
	} calls[32];
};

static int record(struct comm *comm, struct device_queue *queue, void *data, size_t count,
		  enum element_type type, enum comm_reduce reduce, struct error *err)
{
	struct recorder *recorder = (struct recorder *)comm;

	assert_int_equal(type, ELEMENT_F32);
	assert_int_equal(reduce, COMM_SUM);
	assert_true(recorder->count < 32);
	recorder->calls[recorder->count].data = data;
	recorder->calls[recorder->count++].count = count;
	return recorder->count == recorder->fail_at ? error_set(err, ERR_NETWORK, "rank 1 is gone")
						    : 0;
}

static int progress(struct comm *comm, struct error *err)
{
	return 0;
}

static int finish(struct comm *comm, struct device_queue *queue, struct error *err)
{
	((struct recorder *)comm)->finished = ((struct recorder *)comm)->count;
	return 0;
}

static const struct comm_ops recording = {
	.name = "recorder", .all_reduce = record, .progress = progress, .finish = finish};

/* A model ready to train. */
struct rig {
	struct device *device;
	struct device_queue *queue;
	struct graph *graph;
	struct buckets buckets;
	struct optim optim;
	struct recorder recorder;
	struct executor_request request;
	struct device_executor *executor;
	float vote, *x;
	int32_t *labels;
};

static void rig_begin(struct rig *rig, size_t first_bytes, size_t cap_bytes)
{
	const struct shape shape = {1, SIDE, SIDE};
	struct variables variables;
	struct error err = {0};

	*rig = (struct rig){.recorder = {.comm = {&recording, 0, 2}}};
	assert_int_equal(device_cpu_reference.device.open(0, &rig->device, &err), 0);
	assert_int_equal(rig->device->ops->queue_new(rig->device, &rig->queue, &err), 0);
	assert_int_equal(model_build("convnet", &shape, 10, STEM_DEFAULT, &rig->graph, &err), 0);
	assert_int_equal(buckets_make(rig->graph, first_bytes, cap_bytes, &rig->buckets, &err), 0);
	assert_int_equal(optim_new(rig->queue, rig->graph, &rig->buckets, &rig->recorder.comm,
				   &rig->optim, &err),
			 0);
	assert_int_equal(variables_new(rig->graph, &rig->buckets, &variables, &err), 0);
	assert_int_equal(
		graph_initialise(rig->graph, 3, rig->buckets.offsets, variables.weights, &err), 0);
	graph_initialise_buffers(rig->graph, variables.buffers);
	assert_int_equal(optim_load(&rig->optim, &variables, &err), 0);
	variables_free(&variables);

	rig->request = (struct executor_request){
		.graph = rig->graph,
		.batch = BATCH,
		.train = true,
		.buckets = &rig->buckets,
		.comm = &rig->recorder.comm,
		.weights = rig->optim.weights,
		.gradients = rig->optim.gradients,
		.momentum = rig->optim.momentum,
		.buffers = rig->optim.buffers,
		.sgd = {.momentum = 0.9f, .weight_decay = 5e-4f},
		.decay_vectors = true,
	};

	assert_int_equal(device_executor_new(rig->queue, &rig->request, &rig->executor, &err), 0);
	rig->x = calloc((size_t)BATCH * SIDE * SIDE, sizeof *rig->x);
	rig->labels = calloc(BATCH, sizeof *rig->labels);
	assert_true(rig->x && rig->labels);
}

static void rig_end(struct rig *rig)
{
	device_executor_free(rig->executor);
	optim_free(&rig->optim);
	buckets_free(&rig->buckets);
	graph_free(rig->graph);
	rig->device->ops->queue_free(rig->queue);
	rig->device->ops->close(rig->device);
	free(rig->x);
	free(rig->labels);
}

/* losses.py's batch(step). */
static void fill(struct rig *rig, int step)
{
	for (int n = 0; n < BATCH; n++) {
		int label = n % 10;

		rig->labels[n] = label;
		for (int i = 0; i < SIDE * SIDE; i++) {
			uint64_t at =
				((uint64_t)step * BATCH + (uint64_t)n) * SIDE * SIDE + (uint64_t)i;
			uint64_t mixed = at * 2654435761u & 0xffffffffu;
			bool patch = i / SIDE / 14 == label / 5 && i % SIDE / 5 == label % 5;

			mixed = ((mixed ^ mixed >> 15) * 2246822519u) & 0xffffffffu;
			rig->x[n * SIDE * SIDE + i] =
				(float)(mixed >> 8) * 0x1p-24f - 0.5f + (patch ? 2 : 0);
		}
	}
}

static int run(struct rig *rig, int step, int count, int64_t global_count, struct error *err)
{
	struct executor_input input = {.x = rig->x,
				       .target = rig->labels,
				       .count = count,
				       .global_count = global_count,
				       .step = step,
				       .lr = 0.04f,
				       .first = true,
				       .last = true,
				       .vote = rig->vote};

	return device_executor_run(rig->executor, &input, err);
}

static void pytorch_losses(void **state)
{
	struct vector_table table = vectors_read("losses.txt", "loss");
	int steps = (int)table.count;
	struct error err = {0};
	struct rig rig;
	double worst = 0, sum = 0, theirs = 0;

	rig_begin(&rig, DDP_FIRST_BYTES, DDP_CAP_BYTES);
	for (int step = 0; step < steps; step++) {
		struct executor_totals totals;

		fill(&rig, step);
		rig.recorder.count = 0;
		assert_int_equal(run(&rig, step, BATCH, BATCH, &err), 0);
		assert_int_equal(device_executor_read(rig.executor, &totals, &err), 0);
		assert_int_equal(totals.samples, BATCH);
		assert_int_equal(totals.first_nonfinite_step, -1);

		double loss = totals.last_loss_sum / BATCH;
		double float32 = vector_real(&table.rows[step], 0);
		double float64 = vector_real(&table.rows[step], 1);

		worst = fmax(worst, fabs(loss - float32));
		sum += fabs(loss - float64);
		theirs += fabs(float32 - float64);
	}
	printf("largest distance from PyTorch's loss %.2e; mean distance from float64: ours %.2e, "
	       "PyTorch's %.2e\n",
	       worst, sum / steps, theirs / steps);
	/* The loss must fall to a fraction, which a wrong update would prevent. */
	assert_true(vector_real(&table.rows[steps - 1], 0) < 0.5 * vector_real(&table.rows[0], 0));
	assert_true(worst <= 1e-5);
	vectors_free(&table);
	rig_end(&rig);
}

/* With these sizes each limit closes a bucket at another parameter; the expected buckets were
 * worked out by hand. */
static void buckets_in_order(void **state)
{
	static const struct {
		size_t first, cap;
		int count;
		size_t sizes[10];
		const char *why;
	} rows[] = {
		/* fc3 10+840, fc2 84+10080, fc1 120+30720, conv2 16+2400, conv1 6+150 */
		{DDP_FIRST_BYTES, DDP_CAP_BYTES, 1, {44426}, "everything fits in the first MiB"},
		{1,
		 1,
		 10,
		 {10, 840, 84, 10080, 120, 30720, 16, 2400, 6, 150},
		 "one parameter per bucket"},
		{4 * 850,
		 4 * 10000,
		 4,
		 {850, 10164, 30840, 2572},
		 "a bucket closes when the limit is reached"},
		{4 * 851,
		 4 * 10080,
		 4,
		 {934, 10080, 30840, 2572},
		 "one byte below the limit adds another parameter"},
		{40, 4 * 44416, 2, {10, 44416}, "the last bucket is exactly full"},
	};
	struct error err = {0};

	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
		struct rig rig;
		size_t offset = 0;

		rig_begin(&rig, rows[r].first, rows[r].cap);
		print_message("%s\n", rows[r].why);
		fill(&rig, 0);
		assert_int_equal(run(&rig, 0, BATCH, 2 * BATCH, &err), 0);
		assert_int_equal(rig.recorder.count, rows[r].count);
		assert_int_equal(rig.recorder.finished, rows[r].count);
		for (int i = 0; i < rows[r].count; i++) {
			int vote = i == rows[r].count - 1;

			assert_int_equal(rig.recorder.calls[i].count, rows[r].sizes[i] + vote);
			assert_ptr_equal(rig.recorder.calls[i].data, rig.optim.gradients + offset);
			offset += rows[r].sizes[i];
		}
		assert_int_equal(offset, rig.buckets.total);
		rig_end(&rig);
	}
}

static int add_two_votes(struct comm *comm, struct device_queue *queue, void *data, size_t count,
			 enum element_type type, enum comm_reduce reduce, struct error *err)
{
	((float *)data)[count - 1] += 2;
	return record(comm, queue, data, count, type, reduce, err);
}

/* A loss that is not finite is a vote of NaN, but only if that was requested. */
static void votes_nan(struct rig *rig)
{
	struct error err = {0};
	float sum = -1;

	rig->recorder.comm.ops = &recording;
	for (int wanted = 0; wanted < 2; wanted++) {
		device_executor_free(rig->executor);
		rig->request.vote_nonfinite = wanted;
		assert_int_equal(
			device_executor_new(rig->queue, &rig->request, &rig->executor, &err), 0);
		rig->x[0] = NAN;
		rig->recorder.count = 0;
		rig->vote = 1;
		assert_int_equal(run(rig, 3, BATCH, 2 * BATCH, &err), 0);
		assert_int_equal(device_executor_start_votes(rig->executor, &err), 0);
		assert_int_equal(device_executor_finish_votes(rig->executor, &sum, &err), 0);
		assert_true(wanted ? isnan(sum) : sum == 1);
	}
}

/* One more number behind the last bucket changes nothing else. */
static void votes(void **state)
{
	struct error err = {0};
	float sum = -1, *weights[2];

	for (int with = 0; with < 2; with++) {
		struct comm_ops ops = recording;
		struct rig rig;

		rig_begin(&rig, 1 << 16, 1 << 18);
		fill(&rig, 0);
		for (int i = 0; i < 2; i++) {
			rig.vote = i * with;
			rig.recorder.count = 0;
			assert_int_equal(run(&rig, i, BATCH, 2 * BATCH, &err), 0);
			assert_true(rig.recorder.count > 1);
			for (int call = 0; call < rig.recorder.count; call++)
				assert_true((float *)rig.recorder.calls[call].data +
						    rig.recorder.calls[call].count <=
					    rig.optim.gradients + rig.buckets.total + 1);
		}
		weights[with] = malloc(rig.buckets.total * sizeof(float));
		memcpy(weights[with], rig.optim.weights, rig.buckets.total * sizeof(float));
		if (with) {
			assert_memory_equal(weights[0], weights[1],
					    rig.buckets.total * sizeof(float));
			assert_int_equal(device_executor_start_votes(rig.executor, &err), 0);
			assert_int_equal(device_executor_finish_votes(rig.executor, &sum, &err), 0);
			assert_true(sum == 1);
			/* Two other ranks vote; this one no longer does. */
			ops.all_reduce = add_two_votes;
			rig.recorder.comm.ops = &ops;
			rig.recorder.count = 0;
			rig.vote = 0;
			assert_int_equal(run(&rig, 2, BATCH, 2 * BATCH, &err), 0);
			assert_int_equal(device_executor_start_votes(rig.executor, &err), 0);
			assert_int_equal(device_executor_finish_votes(rig.executor, &sum, &err), 0);
			assert_true(sum == 2);
			votes_nan(&rig);
		}
		rig_end(&rig);
	}
	free(weights[0]);
	free(weights[1]);
}

/* A rank without samples takes part with zero gradients; half a batch counts half. */
static void few_samples(void **state)
{
	struct error err = {0};
	struct rig rig, half;
	struct executor_totals totals;
	struct variables stored, other;
	float *weights;

	rig_begin(&rig, DDP_FIRST_BYTES, DDP_CAP_BYTES);
	fill(&rig, 0);
	assert_int_equal(run(&rig, 7, 0, 3, &err), 0);
	assert_int_equal(rig.recorder.count, 1);
	for (size_t i = 0; i < rig.buckets.total; i++)
		assert_true(rig.optim.gradients[i] == 0);
	assert_int_equal(device_executor_read(rig.executor, &totals, &err), 0);
	assert_int_equal(totals.samples, 0);
	assert_int_equal(totals.first_nonfinite_step, -1);

	assert_int_equal(run(&rig, 8, BATCH + 1, BATCH + 1, &err), -ERR_INTERNAL);
	assert_non_null(strstr(err.text, "33"));

	/* The gradient of the same samples in a batch twice as large is exactly half. */
	rig_begin(&half, DDP_FIRST_BYTES, DDP_CAP_BYTES);
	fill(&half, 0);
	assert_int_equal(run(&half, 0, BATCH, 2 * BATCH, &err), 0);
	weights = malloc(half.buckets.total * sizeof *weights);
	assert_non_null(weights);
	memcpy(weights, half.optim.gradients, half.buckets.total * sizeof *weights);
	rig_end(&half);
	rig_begin(&half, DDP_FIRST_BYTES, DDP_CAP_BYTES);
	fill(&half, 0);
	assert_int_equal(run(&half, 0, BATCH, BATCH, &err), 0);
	for (size_t i = 0; i < half.buckets.total; i++)
		assert_true(half.optim.gradients[i] == 2 * weights[i]);
	free(weights);

	/* Storing and loading gives the same values. */
	assert_int_equal(variables_new(rig.graph, &rig.buckets, &stored, &err), 0);
	assert_int_equal(variables_new(rig.graph, &rig.buckets, &other, &err), 0);
	assert_int_equal(optim_store(&half.optim, &stored, &err), 0);
	assert_int_equal(optim_load(&rig.optim, &stored, &err), 0);
	assert_int_equal(optim_store(&rig.optim, &other, &err), 0);
	assert_memory_equal(stored.weights, other.weights, half.buckets.total * sizeof *weights);
	assert_memory_equal(stored.momentum, other.momentum, half.buckets.total * sizeof *weights);
	variables_free(&stored);
	variables_free(&other);
	rig_end(&half);
	rig_end(&rig);
}

static void first_bad_step(void **state)
{
	struct error err = {0};
	struct rig rig;
	struct executor_totals totals;

	rig_begin(&rig, DDP_FIRST_BYTES, DDP_CAP_BYTES);
	fill(&rig, 0);
	assert_int_equal(run(&rig, 11, BATCH, BATCH, &err), 0);
	rig.x[5 * SIDE * SIDE + 400] = NAN;
	assert_int_equal(run(&rig, 12, BATCH, BATCH, &err), 0);
	assert_int_equal(run(&rig, 13, BATCH, BATCH, &err), 0);
	assert_int_equal(device_executor_read(rig.executor, &totals, &err), 0);
	assert_int_equal(totals.first_nonfinite_step, 12);
	assert_int_equal(totals.samples, 3 * BATCH);
	assert_true(isnan(totals.loss_sum));
	/* A read starts new totals. */
	assert_int_equal(device_executor_read(rig.executor, &totals, &err), 0);
	assert_int_equal(totals.samples, 0);
	assert_int_equal(totals.first_nonfinite_step, -1);
	rig_end(&rig);
}

/* A failed reduction ends the step before the update: weights stay what they were. */
static void failed_comm(void **state)
{
	struct error err = {0};
	struct rig rig;
	float *before;

	rig_begin(&rig, 1, 1);
	fill(&rig, 0);
	before = malloc(rig.buckets.total * sizeof *before);
	assert_non_null(before);
	memcpy(before, rig.optim.weights, rig.buckets.total * sizeof *before);
	rig.recorder.fail_at = 3;
	assert_int_equal(run(&rig, 0, BATCH, BATCH, &err), -ERR_NETWORK);
	assert_non_null(strstr(err.text, "rank 1 is gone"));
	assert_int_equal(rig.recorder.count, 3);
	assert_memory_equal(before, rig.optim.weights, rig.buckets.total * sizeof *before);
	free(before);
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pytorch_losses), cmocka_unit_test(buckets_in_order),
		cmocka_unit_test(votes),	  cmocka_unit_test(few_samples),
		cmocka_unit_test(first_bad_step), cmocka_unit_test(failed_comm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
