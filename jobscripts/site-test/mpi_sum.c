/* SPDX-License-Identifier: BSD-3-Clause */
/* An MPI program for the tests: prints the world size and checks that messages arrive. With an
 * argument, the rank of that number calls MPI_Abort. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rank, size, sum, next;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc > 1 && rank == atoi(argv[1]))
		MPI_Abort(MPI_COMM_WORLD, 9);
	int mine = rank + 1;

	MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &next, 1, MPI_INT,
		     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	printf("MPI rank %d of %d, sum %d, before me %d\n", rank, size, sum, next);
	MPI_Finalize();
	return 0;
}
