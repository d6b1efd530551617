/* SPDX-License-Identifier: BSD-3-Clause */
/* The communication seam: collectives between the ranks, ordered on a device queue. */
#ifndef BERTH_TRAIN_COMM_COMM_H
#define BERTH_TRAIN_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "train/device/device.h"

enum comm_reduce { COMM_SUM, COMM_MIN, COMM_MAX };

/* What a comm is opened with; borrowed during open. */
struct comm_request {
	int rank, size, local_rank;
	const char *address; /* MASTER_ADDR, for comms that meet there themselves */
	int port;
	int timeout_ms; /* of every wait */
};

/* First member of each comm's own struct. */
struct comm {
	const struct comm_ops *ops;
	int rank, size;
};

/* Rules for all collectives: every rank makes the same calls in the same order with the same
 * counts. data is memory of queue's device. A collective is begun after the work that is on queue
 * now, and is done after the next finish: later work on queue then sees the result. Several may
 * be under way. After an error or abort the comm only closes.
 * Errors: -ERR_NETWORK past the deadline (err names the ranks that did not come), after abort or
 * when a peer is lost. */
struct comm_ops {
	const char *name; /* "self", "mpi" */
	/* -ERR_DATA: the comm's world is not the request's; -ERR_UNAVAILABLE: its library says no.
	 */
	int (*open)(const struct comm_request *request, struct comm **out, struct error *err);
	int (*all_reduce)(struct comm *comm, struct device_queue *queue, void *data, size_t count,
			  enum element_type type, enum comm_reduce reduce, struct error *err);
	int (*broadcast)(struct comm *comm, struct device_queue *queue, void *data,
			 size_t size_bytes, int root, struct error *err);
	/* to: size * size_bytes, in rank order. */
	int (*all_gather)(struct comm *comm, struct device_queue *queue, const void *from, void *to,
			  size_t size_bytes, struct error *err);
	int (*barrier)(struct comm *comm, struct device_queue *queue, struct error *err);
	/* Make progress beside computation; may be called often; never waits. */
	int (*progress)(struct comm *comm, struct error *err);
	/* All collectives begun are done (for a queue of a GPU: the queue waits, the host need
	 * not). */
	int (*finish)(struct comm *comm, struct device_queue *queue, struct error *err);
	/* From any thread: waits in progress and later calls fail with why. */
	void (*abort)(struct comm *comm, const char *why);
	/* Collective unless aborted or failed. NULL is fine. */
	void (*close)(struct comm *comm);
};

extern const struct comm_ops comm_self; /* a world of one */
#define COMM_MPI_MODULE "comm-mpi"	/* comm-mpi.so; symbol "comm_mpi" */

/* Is there a comm of that name? -ERR_USAGE lists them. Nothing is loaded. */
int comm_known(const char *name, struct error *err);
/* Open "auto" (self in a world of one, else mpi), "self" or "mpi". search_path: see
 * base/module.h. -ERR_USAGE: no such comm, or self in a larger world. */
int comm_open(const char *name, const struct comm_request *request, const char *search_path,
	      struct comm **out, struct error *err);

/* The same on host memory, finished on return: for the small values that ranks agree on. Devices
 * that are not the host stage them. */
int comm_agree(struct comm *comm, struct device_queue *queue, double *values, size_t count,
	       enum comm_reduce reduce, struct error *err);
int comm_share(struct comm *comm, struct device_queue *queue, void *data, size_t size_bytes,
	       int root, struct error *err);

#endif
