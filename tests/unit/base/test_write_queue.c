/* SPDX-License-Identifier: BSD-3-Clause */
/* The queue of output, with and without its thread. Linked with --wrap=pthread_create. */
#include "../rows.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/write_queue.h"

static int create_fails; /* how many calls of pthread_create fail */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *context);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
			  void *context)
{
	if (create_fails) {
		create_fails--;
		return EAGAIN;
	}
	return __real_pthread_create(thread, attr, start, context);
}

static void append(void *context, unsigned target, const void *data, size_t size)
{
	char *text = context;
	size_t used = strlen(text);

	text[used++] = (char)('0' + target);
	memcpy(text + used, data, size);
	text[used + size] = '\0';
}

static void pieces_in_order(void **state)
{
	static const int fails[] = {0, 1, 3, 1000};
	char words[][8] = {"one ", "two ", "three "};

	for (size_t row = 0; row < ROWS(fails); row++) {
		struct write_queue *queue;
		struct error err = {0};
		char text[64] = "";

		create_fails = fails[row];
		assert_int_equal(write_queue_new(append, text, &queue, &err), 0);
		for (size_t i = 0; i < 3; i++) {
			struct iovec part = {words[i], strlen(words[i])};

			assert_true(write_queue_add(queue, (unsigned)i, &part, 1));
			/* Without a thread a piece is written at once. */
			if (create_fails)
				assert_int_equal(write_queue_size(queue), 0);
		}
		assert_true(write_queue_wait(queue, 60000));
		assert_string_equal(text, "0one 1two 2three ");
		assert_true(write_queue_free(queue, 60000));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_in_order)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
