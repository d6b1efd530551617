/* SPDX-License-Identifier: BSD-3-Clause */
/* berth.h: a program asks for its berth.
 *
 * A process of a training job learns which rank it is, how to reach rank 0, and which cores,
 * GPUs and NICs are its own. It can wait for the other ranks and exchange small values with them,
 * such as an NCCL id.
 *
 *     if (berth_init(30000) < 0) {
 *             fprintf(stderr, "%s\n", berth_error());
 *             return 1;
 *     }
 *     printf("rank %d of %d\n", berth_rank(), berth_size());
 *     berth_finalize();
 *
 * The same program works under berth run, mpirun and srun --mpi=pmix (over PMIx), and under
 * torchrun or by hand (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). Without a launcher
 * it is rank 0 of 1. Compile with: cc program.c $(pkg-config --cflags --libs berth)
 *
 * Errors. A function that can fail returns 0 or more on success and a negative enum berth_code on
 * failure; berth_error() then returns one line: what was found, what was expected, what to
 * do. Nothing here prints or ends the process.
 *
 * Threads. berth_init and berth_finalize: one thread, while no other is in a function of this
 * library. Between them every function may be called from any thread; barrier, put and get take
 * turns inside, so a thread that waits in one holds up the others. Values returned by pointer
 * stay valid and unchanged until berth_finalize. Not for use in a child after fork.
 *
 * PMIx programs and MPI programs may use their libraries beside this one.
 *
 * Versions. A program linked with libberth.so.0 runs with every later libberth.so.0: functions and
 * codes are only added. The number rises when one of them, or a structure, changes. */
#ifndef BERTH_H
#define BERTH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong; the numbers, made positive, are berth's exit codes. */
enum berth_code {
	BERTH_OK = 0,
	BERTH_USAGE = -64,	 /* not between berth_init and berth_finalize; a NULL */
	BERTH_DATA = -65,	 /* variables that contradict each other; a bad key or rank */
	BERTH_INPUT = -66,	 /* a file that berth named cannot be read */
	BERTH_UNAVAILABLE = -69, /* PMIx is required but missing; out of memory */
	BERTH_INTERNAL = -70,	 /* an internal error of berth */
	BERTH_NETWORK = -76,	 /* a rank is late or has ended */
};

/* The text of this thread's last failure, "" if there was none. Valid until the thread's next
 * failure. Never NULL. */
const char *berth_error(void);
/* A short description of a code, for programs that keep only the code. Never NULL. */
const char *berth_code_text(int code);
/* "0.2.0": of the library that is loaded. */
const char *berth_version(void);

/* ---- the job ---- */

/* Join the job; waits at most timeout_ms for the agent or launcher of this node, not for the other
 * ranks. PMIx may start threads. Leaves the environment, the binding and the signals alone.
 * Further calls are only counted: the same number of berth_finalize calls ends it.
 * BERTH_DATA: variables that contradict each other, named (RANK without WORLD_SIZE; RANK and PMIx
 * that disagree). BERTH_UNAVAILABLE: PMIx started this process, but its module does not load.
 * BERTH_NETWORK: no answer in time. */
int berth_init(int timeout_ms);

/* Leave the job. Does not wait for the others, except that without PMIx rank 0, which hosts the
 * exchange, stays at most 2 s for those who still use it: end with a barrier where that matters.
 * BERTH_USAGE: not joined. */
int berth_finalize(void);

/* This process's place. All >= 0; BERTH_USAGE before berth_init. */
int berth_rank(void);	    /* 0 .. size-1 in the job */
int berth_size(void);	    /* how many ranks the job has, 1 when alone */
int berth_local_rank(void); /* 0 .. local_size-1 on this node: its GPU's number as CUDA sees it */
int berth_local_size(void); /* how many ranks this node has; 0 if unknown (no LOCAL_WORLD_SIZE) */
int berth_node_rank(void);  /* this node's number in the job */

/* Where rank 0 is: a numeric address or name without brackets, "" if unknown. The port is free for
 * the program's own rendezvous (torch, NCCL, gloo), 0 if unknown. Without PMIx the barrier, put and
 * get of this library use that port: a program that uses both needs PMIx. NULL, BERTH_USAGE before
 * berth_init. */
const char *berth_address(void);
int berth_port(void);

/* The job's id as berth or the scheduler names it, NULL if there is none. attempt counts
 * restarts of the same job, from 0. */
const char *berth_job_id(void);
int berth_attempt(void);

/* When the scheduler will end the job: Unix seconds, 0 if unknown. Each call checks whether berth
 * has learnt another time. */
int64_t berth_end_time(void);

/* Should this job save its work and stop? 1 if the stop file exists, else 0. Each call checks the
 * file (one system call). */
int berth_stop_requested(void);

/* ---- this rank's part of the machine ---- */

struct berth_gpu {
	const char *pci;  /* "0000:03:00.0" */
	const char *uuid; /* "GPU-..." or NULL if unknown */
	int index;	  /* in PCI order among all GPUs of the node */
	int ordinal;	  /* CUDA's number in this process: cudaSetDevice(ordinal) */
};

struct berth_nic {
	const char *net;  /* interface, "hsn0", or NULL */
	const char *rdma; /* RDMA device, "mlx5_0", or NULL */
	const char *pci;  /* or NULL */
	const char *kind; /* "infiniband", "slingshot", "efa", "roce", "ethernet" */
	const char *path; /* distance to the first GPU: "PIX", "PXB", "PHB", "NODE", "SYS" */
	int port;
	int up; /* 1 up, 0 down or unknown */
};

struct berth_plan {
	const char *cpus; /* OS indices this rank is bound to: "48-55,112-119" */
	const char *numa; /* the NUMA nodes of these: "3" */
	const char *why;  /* the reason for the choice, as text */
	int threads;	  /* cores: what OMP_NUM_THREADS is */
	size_t gpu_count, nic_count;
	const struct berth_gpu *gpus;
	const struct berth_nic *nics; /* nearest first; for information */
};

/* What berth assigned to this rank; NULL if berth did not start it (it is not bound then either),
 * or before berth_init. */
const struct berth_plan *berth_plan(void);

/* ---- the other ranks ---- */

/* Wait until all ranks have called it as often as this one. Returns BERTH_NETWORK after timeout_ms;
 * berth_error() then names the missing ranks as far as they are known. After that only
 * berth_finalize is of use. BERTH_UNAVAILABLE: torchrun uses the port itself, so the ranks cannot
 * connect. */
int berth_barrier(int timeout_ms);

/* Publish size bytes (0 is allowed, data may then be NULL) under key, 1 to 255 bytes. data is
 * copied. Other ranks read it with berth_get. Values should be small: some KiB, at most 16 MiB
 * each. Putting a key again replaces the value, but ranks that have read it may keep seeing the old
 * one. */
int berth_put(const char *key, const void *data, size_t size);

/* Get the value that rank has put under key, waiting at most timeout_ms. On success *data is the
 * caller's (berth_free) and has a NUL after its *size bytes; on failure both are untouched.
 * BERTH_NETWORK names rank and key: not put in time, or the rank left without putting it. */
int berth_get(int rank, const char *key, int timeout_ms, void **data, size_t *size);
void berth_free(void *data); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif
