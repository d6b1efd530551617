/* SPDX-License-Identifier: BSD-3-Clause */
#include "ops_support.h"

#include "../rows.h"

#include <time.h>

#define GUARD ((size_t)64) /* bytes */
#define SLOTS 24

struct slot {
	void *memory;
	unsigned char *before; /* what it held, with its guard */
	size_t size;	       /* bytes, less the guard */
	bool result, in_out;
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

void bench_seed(void)
{
	const char *seed = getenv("BERTH_TEST_SEED");

	test_seed = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL);
	printf("BERTH_TEST_SEED=%llu\n", (unsigned long long)test_seed);
}

int bench_begin(void **state)
{
	struct bench *bench = calloc(1, sizeof *bench);
	struct error err = {0};

	bench->random = test_seed * 2654435761u + 88172645463325252u;
	good(device_cpu_reference.open(0, &bench->device, &err), &err);
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

static struct slot *slot_of(struct bench *bench, const struct tensor *tensor)
{
	for (int i = 0; i < bench->count; i++)
		if (bench->slots[i].memory == tensor->data)
			return &bench->slots[i];
	fail_msg("no such tensor");
	return NULL;
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
	slot_of(bench, tensor)->in_out = true;
}

static unsigned char *download(struct bench *bench, const struct slot *slot)
{
	unsigned char *now = malloc(slot->size + GUARD);
	struct error err = {0};

	good(bench->device->ops->queue_wait(bench->queue, 60000, &err), &err);
	good(bench->device->ops->copy_out(bench->queue, now, slot->memory, slot->size + GUARD,
					  &err),
	     &err);
	return now;
}

int bench_try(struct bench *bench, const struct op_call *call, struct error *err)
{
	if (!bench->device->ops->supports(bench->device, call))
		fail_msg("op %s is not supported", op_name(call->kind));
	return bench->device->ops->run(bench->queue, call, err);
}

static void check_slots(struct bench *bench, const struct op_call *call)
{
	for (int i = 0; i < bench->count; i++) {
		struct slot *slot = &bench->slots[i];
		unsigned char *now = download(bench, slot);

		if (memcmp(now + slot->size, slot->before + slot->size, GUARD))
			fail_msg("op %s wrote behind tensor %d", op_name(call->kind), i);
		if (!slot->result && memcmp(now, slot->before, slot->size))
			fail_msg("op %s changed its input, tensor %d", op_name(call->kind), i);
		free(now);
	}
}

void bench_run(struct bench *bench, const struct op_call *call)
{
	struct error err = {0};
	unsigned char *first[SLOTS];
	bool again = true;

	good(bench_try(bench, call, &err), &err);
	check_slots(bench, call);
	for (int i = 0; i < bench->count; i++)
		again = again && !bench->slots[i].in_out;
	for (int i = 0; i < bench->count; i++)
		first[i] = download(bench, &bench->slots[i]);
	if (again)
		good(bench_try(bench, call, &err), &err);
	for (int i = 0; i < bench->count; i++) {
		unsigned char *second = download(bench, &bench->slots[i]);

		if (memcmp(first[i], second, bench->slots[i].size))
			fail_msg("op %s: a second run gave other bits in tensor %d (seed %llu)",
				 op_name(call->kind), i, (unsigned long long)test_seed);
		free(second);
		free(first[i]);
	}
}

void *bench_fetch(struct bench *bench, const struct tensor *tensor)
{
	return download(bench, slot_of(bench, tensor));
}
