from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="artifact",
            name="artifact_name_per_run",
        ),
        migrations.AddField(
            model_name="artifact",
            name="span",
            field=models.CharField(blank=True, max_length=40),
        ),
        migrations.AddConstraint(
            model_name="artifact",
            constraint=models.UniqueConstraint(
                fields=("run", "span", "name"), name="artifact_name_per_run"
            ),
        ),
    ]
