/* SPDX-License-Identifier: BSD-3-Clause */
/* One communicator. Shared by gloo.c (collectives and the thread that runs them) and open.c. */
#ifndef BERTH_TRAIN_COMM_GLOO_GLOO_INTERNAL_H
#define BERTH_TRAIN_COMM_GLOO_GLOO_INTERNAL_H

#include <pthread.h>

#include "rendezvous/exchange.h"
#include "train/comm/comm.h"
#include "train/comm/gloo/mesh.h"
#include "train/comm/meeting.h"
#include "train/comm/shm_allreduce.h"

struct gloo {
	struct comm comm;
	struct gloo_mesh *mesh;
	struct ranks *ranks;
	const struct meeting *meeting;
	int timeout_ms;
	struct shm_allreduce *shm; /* all ranks are on one node and share memory; else NULL */

	pthread_t thread;
	bool thread_runs; /* until it is joined */

	/* The lock guards all below. The thread runs the jobs from done to count, in order. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stop;
	struct mesh_job *jobs;
	size_t count, done, capacity;
	bool failed, closing;
	struct error why;
};

int gloo_prepare(const struct comm_request *request, char common[48], struct error *err);
int gloo_open(const struct comm_request *request, struct comm **out, struct error *err);
void *gloo_thread(void *gloo);

#endif
