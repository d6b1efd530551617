/* SPDX-License-Identifier: BSD-3-Clause */
#include "ops_support.h"

#include "../rows.h"
#include "op_check.h"

#include <math.h>
#include <time.h>

#define GUARD ((size_t)64) /* bytes */
#define SLOTS 24

struct slot {
	void *memory;
	unsigned char *before; /* its contents before the run, with the guard */
	size_t size;	       /* bytes, without the guard */
	bool result;
};

struct bench {
	struct device *device;
	struct device_queue *queue;
	uint64_t random;
	int count;
	struct slot slots[SLOTS];
};

uint64_t test_seed;

static void good(int rc, const struct error *err)
{
	if (rc)
		fail_msg("%s (%d)", err->text, rc);
}

int bench_choose(void)
{
	const char *seed = getenv("BERTH_TEST_SEED");
	struct device *device;
	struct error err = {0};

	test_seed = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
	printf("BERTH_TEST_SEED=%llu\n", (unsigned long long)test_seed);
	if (op_emitter.device->open(0, &device, &err)) {
		printf("skipped: device %s is missing: %s\n", op_emitter.device->name, err.text);
		return 77;
	}
	device->ops->close(device);
	return 0;
}

int bench_begin(void **state)
{
	struct bench *bench = calloc(1, sizeof *bench);
	struct error err = {0};

	bench->random = test_seed * 2654435761u + 88172645463325252u;
	good(op_emitter.device->open(0, &bench->device, &err), &err);
	good(bench->device->ops->queue_new(bench->device, &bench->queue, &err), &err);
	*state = bench;
	return 0;
}

void bench_clear(struct bench *bench)
{
	for (int i = 0; i < bench->count; i++) {
		bench->device->ops->memory_free(bench->device, bench->slots[i].memory);
		free(bench->slots[i].before);
	}
	bench->count = 0;
}

int bench_end(void **state)
{
	struct bench *bench = *state;

	bench_clear(bench);
	bench->device->ops->queue_free(bench->queue);
	bench->device->ops->close(bench->device);
	free(bench);
	return 0;
}

bool bench_supports(int64_t batch)
{
	return batch || !op_emitter.network;
}

static uint64_t next(struct bench *bench)
{
	bench->random ^= bench->random << 13;
	bench->random ^= bench->random >> 7;
	bench->random ^= bench->random << 17;
	return bench->random >> 11;
}

int64_t bench_below(struct bench *bench, int64_t n)
{
	return (int64_t)(next(bench) % (uint64_t)n);
}

float bench_number(struct bench *bench)
{
	return (float)(next(bench) & 0xffffff) * 0x1p-23f - 1;
}

static void upload(struct bench *bench, const struct slot *slot)
{
	struct error err = {0};

	good(bench->device->ops->copy_in(bench->queue, slot->memory, slot->before,
					 slot->size + GUARD, &err),
	     &err);
}

static unsigned char *download(struct bench *bench, const struct slot *slot)
{
	unsigned char *now = malloc(slot->size + GUARD);
	struct error err = {0};

	good(bench->device->ops->copy_out(bench->queue, now, slot->memory, slot->size + GUARD,
					  &err),
	     &err);
	return now;
}

static struct slot *slot_of(struct bench *bench, const struct tensor *tensor)
{
	for (int i = 0; i < bench->count; i++)
		if (bench->slots[i].memory == tensor->data)
			return &bench->slots[i];
	fail_msg("no such tensor");
	return NULL;
}

static struct tensor place(struct bench *bench, enum element_type type, int rank,
			   const int64_t *shape, bool result)
{
	struct tensor tensor = tensor_make(NULL, type, rank, shape);
	struct error err = {0};
	struct slot *slot = &bench->slots[bench->count];

	assert_true(bench->count < SLOTS);
	*slot = (struct slot){.size = (size_t)tensor_count(&tensor) * 4, .result = result};
	good(bench->device->ops->memory_new(bench->device, slot->size + GUARD, &slot->memory, &err),
	     &err);
	bench->count++;
	slot->before = malloc(slot->size + GUARD);
	/* All ones: a NaN, and -1 as a whole number. */
	memset(slot->before, 0xff, slot->size + GUARD);
	tensor.data = slot->memory;
	return tensor;
}

struct tensor bench_random(struct bench *bench, int rank, const int64_t *shape)
{
	struct tensor tensor = place(bench, ELEMENT_F32, rank, shape, false);
	struct slot *slot = &bench->slots[bench->count - 1];

	for (size_t i = 0; i < slot->size / 4; i++) {
		float number = bench_number(bench);

		memcpy(slot->before + i * 4, &number, 4);
	}
	upload(bench, slot);
	return tensor;
}

struct tensor bench_given(struct bench *bench, enum element_type type, int rank,
			  const int64_t *shape, const void *words)
{
	struct tensor tensor = place(bench, type, rank, shape, false);
	struct slot *slot = &bench->slots[bench->count - 1];

	memcpy(slot->before, words, slot->size);
	upload(bench, slot);
	return tensor;
}

struct tensor bench_result(struct bench *bench, int rank, const int64_t *shape)
{
	struct tensor tensor = place(bench, ELEMENT_F32, rank, shape, true);

	upload(bench, &bench->slots[bench->count - 1]);
	return tensor;
}

struct tensor bench_gradient(struct bench *bench, int rank, const int64_t *shape, bool add)
{
	if (!add)
		return bench_result(bench, rank, shape);

	struct tensor tensor = bench_random(bench, rank, shape);

	bench_in_out(bench, &tensor);
	return tensor;
}

const float *bench_before(struct bench *bench, const struct tensor *tensor)
{
	return (const float *)(const void *)slot_of(bench, tensor)->before;
}

void bench_set(struct bench *bench, const struct tensor *tensor, int64_t at, float value)
{
	struct slot *slot = slot_of(bench, tensor);

	memcpy(slot->before + at * 4, &value, 4);
	upload(bench, slot);
}

void bench_in_out(struct bench *bench, const struct tensor *tensor)
{
	slot_of(bench, tensor)->result = true;
}

void bench_settle(struct bench *bench)
{
	for (int i = 0; i < bench->count; i++) {
		unsigned char *now = download(bench, &bench->slots[i]);

		free(bench->slots[i].before);
		bench->slots[i].before = now;
		bench->slots[i].result = false;
	}
}

int bench_try(struct bench *bench, const struct op_call *call, struct error *err)
{
	int rc = op_check(call, err);

	return rc ? rc : op_emitter.run(bench->queue, call, err);
}

static void check_slots(struct bench *bench, const struct op_call *call)
{
	for (int i = 0; i < bench->count; i++) {
		struct slot *slot = &bench->slots[i];
		unsigned char *now = download(bench, slot);

		if (memcmp(now + slot->size, slot->before + slot->size, GUARD))
			fail_msg("op %s wrote past the end of tensor %d", op_name(call->kind), i);
		if (!slot->result && memcmp(now, slot->before, slot->size))
			fail_msg("op %s changed its input, tensor %d", op_name(call->kind), i);
		free(now);
	}
}

void bench_run(struct bench *bench, const struct op_call *call)
{
	struct error err = {0};
	unsigned char *first[SLOTS];

	good(bench_try(bench, call, &err), &err);
	check_slots(bench, call);
	for (int i = 0; i < bench->count; i++) {
		first[i] = download(bench, &bench->slots[i]);
		if (bench->slots[i].result)
			upload(bench, &bench->slots[i]);
	}
	good(bench_try(bench, call, &err), &err);
	for (int i = 0; i < bench->count; i++) {
		unsigned char *second = download(bench, &bench->slots[i]);

		if (memcmp(first[i], second, bench->slots[i].size))
			fail_msg("op %s: a second run gave different bits in tensor %d (seed %llu)",
				 op_name(call->kind), i, (unsigned long long)test_seed);
		free(second);
		free(first[i]);
	}
}

void *bench_fetch(struct bench *bench, const struct tensor *tensor)
{
	return download(bench, slot_of(bench, tensor));
}

/* ---- float64 ---- */

void exact_add(struct exact *exact, double left, double right)
{
	exact->sum += left * right;
	exact->size += fabs(left * right);
	exact->count++;
}

struct exact *exact_new(struct bench *bench, const struct tensor *tensor, bool add)
{
	int64_t count = tensor_count(tensor);
	struct exact *exact = calloc((size_t)count + 1, sizeof *exact);

	for (int64_t i = 0; add && i < count; i++)
		exact_add(&exact[i], (double)bench_before(bench, tensor)[i], 1);
	return exact;
}

void exact_check(struct bench *bench, const char *what, const struct tensor *tensor,
		 struct exact *exact)
{
	float *seen = bench_fetch(bench, tensor);

	for (int64_t i = 0; i < tensor_count(tensor); i++) {
		const struct exact *at = &exact[i];
		double bound = 8 * sqrt((double)at->count + 1) * 0x1p-24 * at->size;

		/* Compare infinities instead of subtracting them. */
		if (isnan(at->sum) ? !isnan(seen[i])
				   : !((double)seen[i] == at->sum ||
				       fabs((double)seen[i] - at->sum) <= bound))
			fail_msg("%s[%lld] is %.9g, expected %.9g within %.2g (seed %llu)", what,
				 (long long)i, (double)seen[i], at->sum, bound,
				 (unsigned long long)test_seed);
	}
	free(seen);
	free(exact);
}
