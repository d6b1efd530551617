/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/renewer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

struct renewer {
	struct owner *owner; /* guarded by renewing */
	int period_ms;
	pthread_t thread;
	pthread_mutex_t renewing; /* held as long as the file system takes */
	pthread_mutex_t lock;
	pthread_cond_t changed;

	/* guarded by the lock */
	bool ends;
	struct error lost; /* code 0: the directory is ours */
};

int renewer_lost(struct renewer *renewer, struct error *err)
{
	struct error lost;

	if (!renewer)
		return 0;
	pthread_mutex_lock(&renewer->lock);
	lost = renewer->lost;
	pthread_mutex_unlock(&renewer->lock);
	if (!lost.code)
		return 0;
	*err = lost;
	return -lost.code;
}

int renewer_renew(struct renewer *renewer, struct error *err)
{
	struct error why = {0};

	if (!renewer)
		return 0;
	pthread_mutex_lock(&renewer->renewing);
	if (!renewer_lost(renewer, &why) && owner_renew(renewer->owner, &why) &&
	    owner_is_lost(renewer->owner)) {
		pthread_mutex_lock(&renewer->lock);
		renewer->lost = why;
		pthread_mutex_unlock(&renewer->lock);
	}
	pthread_mutex_unlock(&renewer->renewing);
	return renewer_lost(renewer, err);
}

static void *work(void *argument)
{
	struct renewer *renewer = argument;
	struct timespec next = clock_after_ms(renewer->period_ms);
	struct error ignored;

	pthread_mutex_lock(&renewer->lock);
	while (!renewer->ends) {
		if (renewer->lost.code)
			pthread_cond_wait(&renewer->changed, &renewer->lock);
		else if (pthread_cond_timedwait(&renewer->changed, &renewer->lock, &next) ==
			 ETIMEDOUT) {
			pthread_mutex_unlock(&renewer->lock);
			renewer_renew(renewer, &ignored);
			pthread_mutex_lock(&renewer->lock);
			next = clock_after_ms(renewer->period_ms);
		}
	}
	pthread_mutex_unlock(&renewer->lock);
	return NULL;
}

static void destroy(struct renewer *renewer)
{
	pthread_cond_destroy(&renewer->changed);
	pthread_mutex_destroy(&renewer->lock);
	pthread_mutex_destroy(&renewer->renewing);
	free(renewer);
}

int renewer_new(struct owner *owner, int period_ms, struct renewer **out, struct error *err)
{
	struct renewer *renewer = calloc(1, sizeof *renewer);
	sigset_t all, before;
	int rc;

	if (!renewer)
		return error_memory(err, "the thread that renews the .owner file");
	renewer->owner = owner;
	renewer->period_ms = period_ms ? period_ms : OWNER_PERIOD_MS;
	pthread_mutex_init(&renewer->renewing, NULL);
	pthread_mutex_init(&renewer->lock, NULL);
	clock_cond_init(&renewer->changed);
	/* Signals are for the training thread. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	rc = pthread_create(&renewer->thread, NULL, work, renewer);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		destroy(renewer);
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot start a thread to renew the .owner file: %s",
				 strerror(rc));
	}
	*out = renewer;
	return 0;
}

bool renewer_free(struct renewer *renewer, int timeout_ms)
{
	if (!renewer)
		return true;
	pthread_mutex_lock(&renewer->lock);
	renewer->ends = true;
	pthread_cond_broadcast(&renewer->changed);
	pthread_mutex_unlock(&renewer->lock);
	if (!clock_join(renewer->thread, timeout_ms)) {
		pthread_detach(renewer->thread);
		return false;
	}
	destroy(renewer);
	return true;
}
