/* SPDX-License-Identifier: BSD-3-Clause */
/* Print this rank's place, and exchange a value with the next rank.
 *
 *     cc hello.c $(pkg-config --cflags --libs berth) -o hello
 *     berth run -n 2 -- ./hello      (or mpirun, torchrun --no-python, or just ./hello) */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <berth.h>

#define TIMEOUT_MS 30000

static int failed(const char *what)
{
	fprintf(stderr, "hello: %s: %s\n", what, berth_error());
	return 1;
}

int main(void)
{
	char card[64];

	if (berth_init(TIMEOUT_MS))
		return failed("joining the job");
	int rank = berth_rank(), size = berth_size();
	const struct berth_plan *plan = berth_plan();

	printf("rank %d of %d, %d on node %d, meets rank 0 at %s port %d, cores %s, %zu GPUs\n",
	       rank, size, berth_local_rank(), berth_node_rank(), berth_address(), berth_port(),
	       plan ? plan->cpus : "not bound", plan ? plan->gpu_count : 0);

	if (berth_end_time())
		printf("rank %d: the job ends in %lld s\n", rank,
		       (long long)(berth_end_time() - time(NULL)));

	/* Publish a value, and read the next rank's. */
	snprintf(card, sizeof card, "process %ld", (long)getpid());
	if (berth_put("card", card, sizeof card))
		return failed("publishing a value");
	void *other;
	size_t other_size;
	int next = (rank + 1) % size;

	if (berth_get(next, "card", TIMEOUT_MS, &other, &other_size))
		return failed("reading the next rank's value");
	printf("rank %d: rank %d is %s\n", rank, next, (char *)other);
	berth_free(other);

	if (berth_barrier(TIMEOUT_MS))
		return failed("waiting for the others");
	return berth_finalize() ? failed("leaving") : 0;
}
