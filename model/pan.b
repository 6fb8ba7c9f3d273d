	switch (t->back) {
	default: Uerror("bad return move");
	case  0: goto R999; /* nothing to undo */

		 /* CLAIM replies_are_heard */
;
		
	case 3: // STATE 1
		goto R999;

	case 4: // STATE 10
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* CLAIM both_close */
;
		;
		
	case 6: // STATE 6
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC :init: */

	case 7: // STATE 4
		;
		now.ends[1].end_at = trpt->bup.ovals[3];
		now.ends[0].end_at = trpt->bup.ovals[2];
		now.ends[1].state = trpt->bup.ovals[1];
		now.ends[0].state = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 4);
		goto R999;

	case 8: // STATE 5
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 9: // STATE 6
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 10: // STATE 7
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 11: // STATE 8
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 12: // STATE 9
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 13: // STATE 10
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 14: // STATE 11
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 15: // STATE 13
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC Network */

	case 16: // STATE 2
		;
		now.losses = trpt->bup.oval;
		;
		goto R999;

	case 17: // STATE 3
		;
		((P3 *)_this)->to = trpt->bup.oval;
		;
		goto R999;

	case 18: // STATE 4
		;
		((P3 *)_this)->to = trpt->bup.oval;
		;
		goto R999;

	case 19: // STATE 17
		;
		((P3 *)_this)->to = trpt->bup.ovals[7];
		((P3 *)_this)->n = trpt->bup.ovals[6];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].acknowledged = trpt->bup.ovals[5];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].sequence = trpt->bup.ovals[4];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_end = trpt->bup.ovals[3];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_ack = trpt->bup.ovals[2];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_there = trpt->bup.ovals[1];
		((P3 *)_this)->n = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 8);
		goto R999;

	case 20: // STATE 17
		;
		((P3 *)_this)->to = trpt->bup.ovals[7];
		((P3 *)_this)->n = trpt->bup.ovals[6];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].acknowledged = trpt->bup.ovals[5];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].sequence = trpt->bup.ovals[4];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_end = trpt->bup.ovals[3];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_ack = trpt->bup.ovals[2];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_there = trpt->bup.ovals[1];
		((P3 *)_this)->n = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 8);
		goto R999;

	case 21: // STATE 17
		;
		((P3 *)_this)->to = trpt->bup.ovals[6];
		((P3 *)_this)->n = trpt->bup.ovals[5];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].acknowledged = trpt->bup.ovals[4];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].sequence = trpt->bup.ovals[3];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_end = trpt->bup.ovals[2];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_ack = trpt->bup.ovals[1];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index(((P3 *)_this)->n, 2) ].is_there = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 7);
		goto R999;

	case 22: // STATE 20
		;
		now.copies = trpt->bup.oval;
		;
		goto R999;

	case 23: // STATE 21
		;
		((P3 *)_this)->to = trpt->bup.oval;
		;
		goto R999;

	case 24: // STATE 22
		;
		((P3 *)_this)->to = trpt->bup.oval;
		;
		goto R999;

	case 25: // STATE 25
		;
		((P3 *)_this)->n = trpt->bup.oval;
		;
		goto R999;

	case 26: // STATE 26
		;
		((P3 *)_this)->n = trpt->bup.oval;
		;
		goto R999;

	case 27: // STATE 39
		;
		((P3 *)_this)->to = trpt->bup.ovals[6];
		((P3 *)_this)->n = trpt->bup.ovals[5];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].acknowledged = trpt->bup.ovals[4];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].sequence = trpt->bup.ovals[3];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].is_end = trpt->bup.ovals[2];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].is_ack = trpt->bup.ovals[1];
		now.way[ Index(((P3 *)_this)->to, 2) ].slot[ Index((1-((P3 *)_this)->n), 2) ].is_there = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 7);
		goto R999;

	case 28: // STATE 39
		;
		((P3 *)_this)->to = trpt->bup.ovals[1];
		((P3 *)_this)->n = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 29: // STATE 42
		;
		now.crashes = trpt->bup.oval;
		;
		goto R999;

	case 30: // STATE 43
		;
		now.ends[0].due = trpt->bup.oval;
		;
		goto R999;
;
		
	case 31: // STATE 46
		goto R999;

	case 32: // STATE 44
		;
		now.ends[1].due = trpt->bup.oval;
		;
		goto R999;
;
		
	case 33: // STATE 48
		goto R999;

	case 34: // STATE 54
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC App */

	case 35: // STATE 3
		;
		now.ends[0].state = trpt->bup.ovals[1];
		now.ends[0].sent = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 36: // STATE 6
		;
		now.ends[1].sent = trpt->bup.oval;
		;
		goto R999;

	case 37: // STATE 9
		;
		now.ends[ Index(((P2 *)_this)->me, 2) ].read = trpt->bup.oval;
		;
		goto R999;

	case 38: // STATE 14
		;
		now.ends[0].state = trpt->bup.ovals[2];
		now.ends[0].sent = trpt->bup.ovals[1];
		now.ends[0].end_at = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 3);
		goto R999;

	case 39: // STATE 20
		;
		now.ends[ Index(((P2 *)_this)->me, 2) ].acked = trpt->bup.ovals[2];
		now.ends[ Index(((P2 *)_this)->me, 2) ].tombstone = trpt->bup.ovals[1];
		now.ends[ Index(((P2 *)_this)->me, 2) ].state = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 3);
		goto R999;
;
		
	case 40: // STATE 22
		goto R999;

	case 41: // STATE 28
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC Transmit */

	case 42: // STATE 2
		;
		((P1 *)_this)->number = trpt->bup.oval;
		;
		goto R999;

	case 43: // STATE 4
		;
		((P1 *)_this)->number = trpt->bup.oval;
		;
		goto R999;

	case 44: // STATE 10
		;
		((P1 *)_this)->n = trpt->bup.oval;
		;
		goto R999;

	case 45: // STATE 12
		;
		((P1 *)_this)->n = trpt->bup.oval;
		;
		goto R999;

	case 46: // STATE 14
		;
		((P1 *)_this)->n = trpt->bup.oval;
		;
		goto R999;

	case 47: // STATE 29
		;
		((P1 *)_this)->number = trpt->bup.ovals[7];
		now.ends[ Index(((P1 *)_this)->me, 2) ].due = trpt->bup.ovals[6];
		((P1 *)_this)->n = trpt->bup.ovals[5];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].acknowledged = trpt->bup.ovals[4];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].sequence = trpt->bup.ovals[3];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_end = trpt->bup.ovals[2];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_ack = trpt->bup.ovals[1];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_there = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 8);
		goto R999;

	case 48: // STATE 29
		;
		((P1 *)_this)->number = trpt->bup.ovals[2];
		now.ends[ Index(((P1 *)_this)->me, 2) ].due = trpt->bup.ovals[1];
		((P1 *)_this)->n = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 3);
		goto R999;
;
		;
		
	case 50: // STATE 33
		;
		((P1 *)_this)->n = trpt->bup.oval;
		;
		goto R999;

	case 51: // STATE 35
		;
		((P1 *)_this)->n = trpt->bup.oval;
		;
		goto R999;

	case 52: // STATE 37
		;
		((P1 *)_this)->n = trpt->bup.oval;
		;
		goto R999;

	case 53: // STATE 51
		;
		now.ends[ Index(((P1 *)_this)->me, 2) ].due = trpt->bup.ovals[6];
		((P1 *)_this)->n = trpt->bup.ovals[5];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].acknowledged = trpt->bup.ovals[4];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].sequence = trpt->bup.ovals[3];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_end = trpt->bup.ovals[2];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_ack = trpt->bup.ovals[1];
		now.way[ Index((1-((P1 *)_this)->me), 2) ].slot[ Index(((P1 *)_this)->n, 2) ].is_there = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 7);
		goto R999;

	case 54: // STATE 51
		;
		now.ends[ Index(((P1 *)_this)->me, 2) ].due = trpt->bup.ovals[1];
		((P1 *)_this)->n = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;
;
		
	case 55: // STATE 53
		goto R999;

	case 56: // STATE 59
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC Receive */
;
		;
		
	case 58: // STATE 16
		;
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].acknowledged = trpt->bup.ovals[9];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].sequence = trpt->bup.ovals[8];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_end = trpt->bup.ovals[7];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_ack = trpt->bup.ovals[6];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_there = trpt->bup.ovals[5];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[4];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[3];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[2];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[1];
		((P0 *)_this)->n = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 10);
		goto R999;

	case 59: // STATE 16
		;
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].acknowledged = trpt->bup.ovals[9];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].sequence = trpt->bup.ovals[8];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_end = trpt->bup.ovals[7];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_ack = trpt->bup.ovals[6];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_there = trpt->bup.ovals[5];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[4];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[3];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[2];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[1];
		((P0 *)_this)->n = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 10);
		goto R999;

	case 60: // STATE 16
		;
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].acknowledged = trpt->bup.ovals[8];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].sequence = trpt->bup.ovals[7];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_end = trpt->bup.ovals[6];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_ack = trpt->bup.ovals[5];
		now.way[ Index(((P0 *)_this)->me, 2) ].slot[ Index(((P0 *)_this)->n, 2) ].is_there = trpt->bup.ovals[4];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[3];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[2];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[1];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 9);
		goto R999;
;
		;
		
	case 62: // STATE 19
		;
		now.ends[ Index(((P0 *)_this)->me, 2) ].acked = trpt->bup.oval;
		;
		goto R999;

	case 63: // STATE 22
		;
		now.ends[ Index(((P0 *)_this)->me, 2) ].tombstone = trpt->bup.ovals[1];
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;
;
		;
		;
		;
		
	case 66: // STATE 34
		;
		now.made = trpt->bup.ovals[1];
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 67: // STATE 85
		;
		((P0 *)_this)->n = trpt->bup.ovals[4];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[3];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[2];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[1];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 5);
		goto R999;

	case 68: // STATE 85
		;
		((P0 *)_this)->n = trpt->bup.ovals[5];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[4];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[3];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[2];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[1];
		now.ends[ Index(((P0 *)_this)->me, 2) ].due = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 6);
		goto R999;

	case 69: // STATE 46
		;
		now.ends[ Index(((P0 *)_this)->me, 2) ].due = trpt->bup.oval;
		;
		goto R999;

	case 70: // STATE 48
		;
		now.ends[ Index(((P0 *)_this)->me, 2) ].stored = trpt->bup.oval;
		;
		goto R999;

	case 71: // STATE 85
		;
		((P0 *)_this)->n = trpt->bup.ovals[6];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[5];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[4];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[3];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[2];
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = trpt->bup.ovals[1];
		now.ends[ Index(((P0 *)_this)->me, 2) ].has_end = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 7);
		goto R999;

	case 72: // STATE 85
		;
		((P0 *)_this)->n = trpt->bup.ovals[5];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[4];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[3];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[2];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[1];
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 6);
		goto R999;

	case 73: // STATE 85
		;
		((P0 *)_this)->n = trpt->bup.ovals[5];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[4];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[3];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[2];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[1];
		now.ends[ Index(((P0 *)_this)->me, 2) ].due = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 6);
		goto R999;

	case 74: // STATE 63
		;
		now.ends[ Index(((P0 *)_this)->me, 2) ].due = trpt->bup.oval;
		;
		goto R999;

	case 75: // STATE 65
		;
		now.ends[ Index(((P0 *)_this)->me, 2) ].stored = trpt->bup.oval;
		;
		goto R999;

	case 76: // STATE 85
		;
		((P0 *)_this)->n = trpt->bup.ovals[6];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[5];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[4];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[3];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[2];
		now.ends[ Index(((P0 *)_this)->me, 2) ].tombstone = trpt->bup.ovals[1];
		now.ends[ Index(((P0 *)_this)->me, 2) ].state = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 7);
		goto R999;

	case 77: // STATE 85
		;
		((P0 *)_this)->n = trpt->bup.ovals[4];
		((P0 *)_this)->f.acknowledged = trpt->bup.ovals[3];
		((P0 *)_this)->f.sequence = trpt->bup.ovals[2];
		((P0 *)_this)->f.is_end = trpt->bup.ovals[1];
		((P0 *)_this)->f.is_ack = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 5);
		goto R999;
;
		
	case 78: // STATE 87
		goto R999;

	case 79: // STATE 93
		;
		p_restor(II);
		;
		;
		goto R999;
	}

