/* SPDX-License-Identifier: BSD-3-Clause */
/* A PMIx program for the tests and the benchmark: initializes PMIx, makes one fence and finalizes.
 * Prints its rank and the world size; with --time, also how long PMIx_Init and the fence took. */
#include <pmix.h>
#include <stdio.h>
#include <time.h>

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
	pmix_proc_t self, job;
	pmix_value_t *value;
	double begin = now_ms();
	pmix_status_t status = PMIx_Init(&self, NULL, 0);

	if (status != PMIX_SUCCESS) {
		fprintf(stderr, "PMIx_Init: %s\n", PMIx_Error_string(status));
		return 1;
	}
	PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
	if (PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value) != PMIX_SUCCESS)
		return 2;
	if (PMIx_Fence(NULL, 0, NULL, 0) != PMIX_SUCCESS)
		return 3;
	double taken = now_ms() - begin;

	if (argc < 2)
		printf("PMIx rank %u of %u\n", self.rank, value->data.uint32);
	else
		printf("PMIx rank %u of %u: %.3f ms\n", self.rank, value->data.uint32, taken);
	PMIX_VALUE_RELEASE(value);
	return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 4;
}
