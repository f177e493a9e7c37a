"""nbgrader reads this file in the folder of the course, which ``make course`` fills."""

from traitlets.config import get_config

c = get_config()
c.CourseDirectory.course_id = "bvf-tutorial"
c.ExecutePreprocessor.timeout = 120
# Hidden tests leave their cell and a line that says so.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\nraise NotImplementedError()"}
# A cell of tests that is empty in the students' copy is meant: its tests are hidden.
c.GenerateAssignment.create_assignment = True
