/* SPDX-License-Identifier: BSD-3-Clause */
#include "lab.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/cuda/kernels/element.h"

#define GUARD ((size_t)64) /* bytes */

void lab_fail(struct lab *lab, const char *format, ...)
{
	va_list list;

	lab->failed++;
	printf("FAILED %s, %s (BERTH_TEST_SEED=%llu): ", lab->name, lab->type,
	       (unsigned long long)lab->seed);
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	printf("\n");
}

/* Without memory or copies nothing can be tested. */
static void must(cudaError_t code, const char *what)
{
	if (!code)
		return;
	printf("%s: %s\n", what, cudaGetErrorString(code));
	exit(1);
}

static void *host(size_t bytes)
{
	void *out = malloc(bytes + 1);

	if (!out) {
		printf("out of host memory\n");
		exit(1);
	}
	return out;
}

/* ---- numbers ---- */

static uint64_t next(struct lab *lab)
{
	lab->random ^= lab->random << 13;
	lab->random ^= lab->random >> 7;
	lab->random ^= lab->random << 17;
	return lab->random >> 11;
}

int lab_below(struct lab *lab, int n)
{
	return (int)(next(lab) % (uint64_t)n);
}

double lab_number(struct lab *lab)
{
	return (double)(next(lab) & 0xffffff) * 0x1p-23 - 1;
}

static size_t size_of(const struct lab *lab, bool sixteen)
{
	return sixteen ? number_size(lab->config.number) : sizeof(float);
}

static void write_one(const struct lab *lab, void *to, double value, bool sixteen)
{
	float narrow = (float)value;
	uint16_t bits = lab->config.number == NUMBER_F16 ? f16_of_f32(narrow).bits
							 : bf16_of_f32(narrow).bits;

	if (sixteen)
		memcpy(to, &bits, sizeof bits);
	else
		memcpy(to, &narrow, sizeof narrow);
}

static double read_one(const struct lab *lab, const void *from, bool sixteen)
{
	uint16_t bits;
	float value;

	if (sixteen) {
		memcpy(&bits, from, sizeof bits);
		value = lab->config.number == NUMBER_F16 ? f32_of_f16((struct f16){bits})
							 : f32_of_bf16((struct bf16){bits});
	} else {
		memcpy(&value, from, sizeof value);
	}
	return (double)value;
}

double lab_rounded(const struct lab *lab, double value, bool sixteen)
{
	unsigned char bytes[sizeof(float)];

	write_one(lab, bytes, value, sixteen);
	return read_one(lab, bytes, sixteen);
}

/* ---- memory ---- */

static struct held *held_of(struct lab *lab, const void *memory)
{
	for (int i = 0; i < lab->count; i++)
		if (lab->held[i].memory == memory)
			return &lab->held[i];
	printf("the test has no such memory\n");
	exit(1);
}

static struct held *hold(struct lab *lab, size_t bytes)
{
	struct held *held = &lab->held[lab->count];
	void *memory;

	if (lab->count == LAB_MOST) {
		printf("a case has more than %d tensors\n", LAB_MOST);
		exit(1);
	}
	must(cudaMalloc(&memory, bytes + GUARD), "allocating GPU memory");
	*held = (struct held){.memory = memory, .before = host(bytes + GUARD), .bytes = bytes};
	/* All ones: a NaN in each type. */
	memset(held->before, 0xff, bytes + GUARD);
	lab->count++;
	return held;
}

static void upload(struct lab *lab, const struct held *held)
{
	must(cudaMemcpyAsync(held->memory, held->before, held->bytes + GUARD,
			     cudaMemcpyHostToDevice, lab->config.stream),
	     "copying to the GPU");
	must(cudaStreamSynchronize(lab->config.stream), "copying to the GPU");
}

static void download(struct lab *lab, const struct held *held, void *to)
{
	must(cudaMemcpyAsync(to, held->memory, held->bytes + GUARD, cudaMemcpyDeviceToHost,
			     lab->config.stream),
	     "copying from the GPU");
	must(cudaStreamSynchronize(lab->config.stream), "copying from the GPU");
}

void lab_clear(struct lab *lab)
{
	cudaStreamSynchronize(lab->config.stream);
	for (int i = 0; i < lab->count; i++) {
		cudaFree(lab->held[i].memory);
		free(lab->held[i].before);
		free(lab->held[i].at);
	}
	lab->count = 0;
}

void lab_case(struct lab *lab, const char *name)
{
	lab_clear(lab);
	snprintf(lab->name, sizeof lab->name, "%s", name);
}

/* The contents of held before the op, as numbers. */
static void read_before(struct lab *lab, struct held *held, const struct numbers *numbers)
{
	size_t size = size_of(lab, numbers->sixteen);

	for (size_t i = 0; i < numbers->count; i++)
		held->at[i] = read_one(lab, held->before + i * size, numbers->sixteen);
}

static struct numbers numbers_new(struct lab *lab, size_t count, bool sixteen, struct held **out)
{
	struct held *held = hold(lab, count * size_of(lab, sixteen));

	held->at = host(count * sizeof *held->at);
	*out = held;
	return (struct numbers){held->memory, held->at, count, sixteen};
}

void lab_put(struct lab *lab, struct numbers *numbers, const double *values)
{
	struct held *held = held_of(lab, numbers->memory);
	size_t size = size_of(lab, numbers->sixteen);

	for (size_t i = 0; i < numbers->count; i++)
		write_one(lab, held->before + i * size, values[i], numbers->sixteen);
	read_before(lab, held, numbers);
	upload(lab, held);
}

struct numbers lab_given(struct lab *lab, size_t count, bool sixteen, const double *values)
{
	struct held *held;
	struct numbers out = numbers_new(lab, count, sixteen, &held);

	lab_put(lab, &out, values);
	return out;
}

struct numbers lab_random(struct lab *lab, size_t count, bool sixteen)
{
	double *values = host(count * sizeof *values);
	struct numbers out;

	for (size_t i = 0; i < count; i++)
		values[i] = lab_number(lab);
	out = lab_given(lab, count, sixteen, values);
	free(values);
	return out;
}

struct numbers lab_result(struct lab *lab, size_t count, bool sixteen, bool add)
{
	struct held *held;
	struct numbers out;

	if (add) {
		out = lab_random(lab, count, sixteen);
		lab_open(lab, &out);
		return out;
	}
	out = numbers_new(lab, count, sixteen, &held);
	held->result = true;
	read_before(lab, held, &out);
	upload(lab, held);
	return out;
}

void *lab_bytes(struct lab *lab, size_t bytes, const void *from)
{
	struct held *held = hold(lab, bytes);

	held->result = !from;
	if (from)
		memcpy(held->before, from, bytes);
	upload(lab, held);
	return held->memory;
}

void lab_open(struct lab *lab, const struct numbers *numbers)
{
	held_of(lab, numbers->memory)->result = true;
}

void lab_settle(struct lab *lab, struct numbers *numbers)
{
	struct held *held = held_of(lab, numbers->memory);

	download(lab, held, held->before);
	held->result = false;
	read_before(lab, held, numbers);
}

double *lab_fetch(struct lab *lab, const struct numbers *numbers)
{
	const struct held *held = held_of(lab, numbers->memory);
	unsigned char *now = host(held->bytes + GUARD);
	double *out = host(numbers->count * sizeof *out);
	size_t size = size_of(lab, numbers->sixteen);

	download(lab, held, now);
	for (size_t i = 0; i < numbers->count; i++)
		out[i] = read_one(lab, now + i * size, numbers->sixteen);
	free(now);
	return out;
}

void lab_fetch_bytes(struct lab *lab, const void *memory, size_t bytes, void *to)
{
	const struct held *held = held_of(lab, memory);
	unsigned char *now = host(held->bytes + GUARD);

	download(lab, held, now);
	memcpy(to, now, bytes);
	free(now);
}

bool lab_done(struct lab *lab, int rc, const struct error *err)
{
	int before = lab->failed;

	if (rc) {
		lab_fail(lab, "%s", err->text);
		return false;
	}
	must(cudaGetLastError(), lab->name);
	must(cudaStreamSynchronize(lab->config.stream), lab->name);
	for (int i = 0; i < lab->count; i++) {
		const struct held *held = &lab->held[i];
		unsigned char *now = host(held->bytes + GUARD);

		download(lab, held, now);
		if (memcmp(now + held->bytes, held->before + held->bytes, GUARD))
			lab_fail(lab, "the op wrote past the end of tensor %d", i);
		if (!held->result && memcmp(now, held->before, held->bytes))
			lab_fail(lab, "the op changed its input, tensor %d", i);
		free(now);
	}
	return lab->failed == before;
}

/* ---- float64 ---- */

struct exact *exact_new(const struct numbers *numbers, bool add)
{
	struct exact *exact = host(numbers->count * sizeof *exact);

	for (size_t i = 0; i < numbers->count; i++) {
		exact[i] = (struct exact){0};
		if (add)
			exact_term(&exact[i], numbers->at[i], 1);
	}
	return exact;
}

void exact_term(struct exact *exact, double left, double right)
{
	exact->sum += left * right;
	exact->size += fabs(left * right);
	exact->count++;
}

void lab_check(struct lab *lab, const char *what, const struct numbers *numbers,
	       struct exact *exact)
{
	double *seen = lab_fetch(lab, numbers), worst = 0, share = 0;
	double last = numbers->sixteen ? lab->unit : 0x1p-24;
	size_t wrong = 0;

	for (size_t i = 0; i < numbers->count; i++) {
		const struct exact *at = &exact[i];
		double off = fabs(seen[i] - at->sum);
		double bound = last * fabs(at->sum) + lab->unit * at->rounded +
			       8 * sqrt((double)at->count + 1) * 0x1p-24 * at->size;

		/* The error of rounding values that were already rounded. */
		bound = bound * (1 + 2 * lab->unit) + (numbers->sixteen ? lab->least : 0x1p-126);
		if (!(off <= bound) && !wrong++)
			lab_fail(lab, "%s[%zu] is %.9g, expected %.9g within %.2g", what, i,
				 seen[i], at->sum, bound);
		if (off / bound > worst)
			worst = off / bound;
		if (at->size > 0 && off / at->size > share)
			share = off / at->size;
	}
	lab->checked++;
	if (wrong > 1)
		printf("  and %zu more of %zu\n", wrong - 1, numbers->count);
	printf("%s, %s, %s: off by %.2f of the bound, %.1e of the terms\n", lab->name, lab->type,
	       what, worst, share);
	free(seen);
	free(exact);
}

void lab_same(struct lab *lab, const char *what, const struct numbers *numbers, double *expected)
{
	double *seen = lab_fetch(lab, numbers);

	lab->checked++;
	for (size_t i = 0; i < numbers->count; i++)
		if (!(seen[i] == expected[i])) {
			lab_fail(lab, "%s[%zu] is %.9g, expected exactly %.9g", what, i, seen[i],
				 expected[i]);
			break;
		}
	free(seen);
	free(expected);
}
