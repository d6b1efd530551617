/* SPDX-License-Identifier: BSD-3-Clause */
#include "controller/printer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"

#define FULL (1u << 20)
#define RECORD 5 /* which descriptor (1 byte), size (4 bytes) */

struct printer {
	int fds[2];
	bool label;
	int owner[2]; /* the rank whose line is unfinished; -1: none */
	int drained;
	pthread_t thread;
	bool threaded;
	pthread_mutex_t lock;
	pthread_cond_t more, idle;
	struct bytes queue;
	size_t writing; /* bytes that the thread has taken but not written yet */
	bool waiting;	/* printer_full returned true */
	bool end;
	int error[2]; /* errno of a failed write; nothing more is written afterwards */
};

int printer_new(int out_fd, int err_fd, bool label, struct printer **out, struct error *err)
{
	struct printer *printer = calloc(1, sizeof *printer);

	if (!printer)
		return error_memory(err, "the output");
	printer->drained = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (printer->drained < 0) {
		free(printer);
		return error_set(err, ERR_UNAVAILABLE, "eventfd: %s", strerror(errno));
	}
	printer->fds[0] = out_fd;
	printer->fds[1] = err_fd;
	printer->label = label;
	printer->owner[0] = printer->owner[1] = -1;
	pthread_mutex_init(&printer->lock, NULL);
	clock_cond_init(&printer->more);
	clock_cond_init(&printer->idle);
	*out = printer;
	return 0;
}

/* Call write(2) until everything is written. The descriptor may be non-blocking, since it is
 * shared with other processes. */
static int write_all(int fd, const unsigned char *data, size_t size)
{
	while (size) {
		ssize_t n = write(fd, data, size);

		if (n > 0) {
			data += n;
			size -= (size_t)n;
		} else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			struct pollfd wait = {.fd = fd, .events = POLLOUT};

			poll(&wait, 1, 1000);
		} else if (n < 0 && errno != EINTR) {
			return errno;
		}
	}
	return 0;
}

static void write_records(struct printer *printer, const struct bytes *records)
{
	const unsigned char *at = records->data, *end = at + records->size;

	while (at < end) {
		int which = at[0];
		uint32_t size = bytes_get_u32(at + 1);
		int error;

		if (!printer->error[which]) {
			error = write_all(printer->fds[which], at + RECORD, size);
			pthread_mutex_lock(&printer->lock);
			printer->error[which] = error;
			pthread_mutex_unlock(&printer->lock);
		}
		at += RECORD + size;
	}
}

static void *run_printer(void *context)
{
	struct printer *printer = context;
	uint64_t one = 1;

	pthread_mutex_lock(&printer->lock);
	for (;;) {
		while (!printer->queue.size && !printer->end)
			pthread_cond_wait(&printer->more, &printer->lock);
		if (!printer->queue.size)
			break;
		struct bytes records = printer->queue;

		memset(&printer->queue, 0, sizeof printer->queue);
		printer->writing = records.size;
		pthread_mutex_unlock(&printer->lock);
		write_records(printer, &records);
		bytes_free(&records);
		pthread_mutex_lock(&printer->lock);
		printer->writing = 0;
		if (printer->waiting && printer->queue.size <= FULL / 2 &&
		    write(printer->drained, &one, sizeof one) == sizeof one)
			printer->waiting = false;
		if (!printer->queue.size)
			pthread_cond_broadcast(&printer->idle);
	}
	pthread_mutex_unlock(&printer->lock);
	return NULL;
}

static void start_thread(struct printer *printer)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	printer->threaded = !pthread_create(&printer->thread, NULL, run_printer, printer);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void printer_line(struct printer *printer, int rank, bool is_err, const char *text, size_t size,
		  bool newline)
{
	int which = is_err, owner = printer->owner[which];
	bool begins = owner != rank;
	char label[24] = "", before[sizeof label + 1];
	size_t before_size, record_size;
	unsigned char *at;

	if (printer->label && begins)
		snprintf(label, sizeof label, "[%d] ", rank);
	before_size = (size_t)snprintf(before, sizeof before, "%s%s",
				       begins && owner >= 0 ? "\n" : "", label);
	record_size = before_size + size + newline;
	pthread_mutex_lock(&printer->lock);
	if (!printer->threaded)
		start_thread(printer);
	/* Write one record per line with one write(2), so that other writers to a pipe cannot
	 * interleave. */
	at = bytes_extend(&printer->queue, RECORD + record_size);
	if (at) {
		at[0] = (unsigned char)which;
		bytes_put_u32(at + 1, (uint32_t)record_size);
		memcpy(at + RECORD, before, before_size);
		memcpy(at + RECORD + before_size, text, size);
		if (newline)
			at[RECORD + record_size - 1] = '\n';
		printer->owner[which] = newline ? -1 : rank;
	}
	pthread_cond_signal(&printer->more);
	pthread_mutex_unlock(&printer->lock);
}

bool printer_full(struct printer *printer)
{
	uint64_t count;
	bool full;

	if (read(printer->drained, &count, sizeof count) < 0)
		count = 0; /* nothing to read away */
	pthread_mutex_lock(&printer->lock);
	full = printer->queue.size + printer->writing > FULL;
	printer->waiting = full;
	pthread_mutex_unlock(&printer->lock);
	return full;
}

int printer_drained_fd(const struct printer *printer)
{
	return printer->drained;
}

/* Wait at most timeout_ms until everything is written. Return whether it is. */
static bool drain(struct printer *printer, int timeout_ms)
{
	struct timespec until = clock_after_ms(timeout_ms);
	bool done;
	int rc = 0;

	pthread_mutex_lock(&printer->lock);
	while ((printer->queue.size || printer->writing) && !rc) {
		if (timeout_ms < 0)
			rc = pthread_cond_wait(&printer->idle, &printer->lock);
		else
			rc = pthread_cond_timedwait(&printer->idle, &printer->lock, &until);
	}
	done = !printer->queue.size && !printer->writing;
	printer->end = true;
	pthread_cond_signal(&printer->more);
	pthread_mutex_unlock(&printer->lock);
	return done;
}

void printer_free(struct printer *printer, int timeout_ms, char *problem, size_t size)
{
	static const char *const names[] = {"stdout", "stderr"};

	if (problem && size)
		problem[0] = 0;
	if (!printer)
		return;
	if (printer->threaded && !drain(printer, timeout_ms)) {
		if (problem)
			snprintf(problem, size,
				 "stdout or stderr accepts no more output; the remaining output is "
				 "lost");
		return; /* the thread is blocked in write and still uses the struct */
	}
	if (printer->threaded)
		pthread_join(printer->thread, NULL);
	for (int i = 0; i < 2 && problem; i++)
		if (printer->error[i])
			snprintf(problem, size, "lost output of the ranks: cannot write %s: %s",
				 names[i], strerror(printer->error[i]));
	bytes_free(&printer->queue);
	close(printer->drained);
	pthread_cond_destroy(&printer->more);
	pthread_cond_destroy(&printer->idle);
	pthread_mutex_destroy(&printer->lock);
	free(printer);
}
